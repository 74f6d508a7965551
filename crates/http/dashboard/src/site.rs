//! Under which names the dashboard is served.

/// What stands before the server's names.
const LABEL: &str = "console.";
/// Names below it lead to the machine on which the browser runs: RFC 6761, section 6.3.
const LOCALHOST: &str = "localhost";

/// The names of the dashboard.
#[derive(Debug, Clone)]
pub struct Sites {
    /// Below which it is served to other machines, over HTTPS.
    names: Vec<String>,
    /// The port under which clients reach a proxy in front that speaks HTTPS with them, with its colon unless it is
    /// HTTPS's own. Such a proxy may name the port in `Host` or not.
    proxied: Option<String>,
}

/// The dashboard as a browser reached it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// Scheme, host and port, in lower case, as browsers write them in `Origin`.
    pub origin: String,
    /// Whether the browser speaks HTTPS.
    pub secure: bool,
    /// Whether it is there for the server's own machine only. Browsers send a cookie to every port of its host, and any
    /// program, or `atoll tunnel` to a sandbox, may listen on another port of a loopback name: what such a server gets to
    /// see must be of no use from elsewhere.
    pub local: bool,
}

impl Sites {
    /// Those of a server with these names of its own. `public` is the host under which clients reach a proxy in front
    /// that speaks HTTPS with them, if there is one.
    pub fn new<'a>(own: impl IntoIterator<Item = &'a str>, public: Option<&str>) -> Self {
        let mut names: Vec<String> = Vec::new();
        for name in own.into_iter().map(str::to_ascii_lowercase) {
            if name != LOCALHOST && !names.contains(&name) {
                names.push(name);
            }
        }
        Self { names, proxied: public.map(|host| split(host).1.to_owned()) }
    }

    /// All names, without ports.
    pub fn hosts(&self) -> impl Iterator<Item = String> {
        let all = std::iter::once(LOCALHOST).chain(self.names.iter().map(String::as_str));
        all.map(|name| format!("{LABEL}{name}"))
    }

    /// Whether a host (with or without a port) is a name of the dashboard, however it was reached.
    #[must_use]
    pub fn is_named(&self, host: &str) -> bool {
        below(host).is_some_and(|name| name == LOCALHOST || self.names.contains(&name))
    }

    /// The dashboard under this host, which a client named on a connection that is encrypted or not. `None` for all
    /// other names, and for those of other machines without HTTPS: everybody on the network between could read the
    /// cookie.
    #[must_use]
    pub fn find(&self, host: &str, encrypted: bool) -> Option<Site> {
        let name = below(host)?;
        if name == LOCALHOST || encrypted {
            let served = name == LOCALHOST || self.names.contains(&name);
            return served.then(|| Site::new(encrypted, name == LOCALHOST, &host.to_ascii_lowercase()));
        }
        let port = self.proxied.as_ref().filter(|_| self.names.contains(&name))?;
        Some(Site::new(true, false, &format!("{LABEL}{name}{port}")))
    }

    /// The dashboard for a client that reached the server under `host` by a connection that is encrypted or not. `None`
    /// when it is nowhere for that client.
    #[must_use]
    pub fn for_client(&self, host: Option<&str>, encrypted: bool) -> Option<Site> {
        let first = self.names.first();
        if let (Some(port), Some(name)) = (&self.proxied, first) {
            return Some(Site::new(true, false, &format!("{LABEL}{name}{port}")));
        }
        let (name, port) = split(host.unwrap_or(LOCALHOST));
        if is_loopback(name) || below(name).is_some_and(|name| name == LOCALHOST) {
            return Some(Site::new(encrypted, true, &format!("{LABEL}{LOCALHOST}{port}")));
        }
        let name = first.filter(|_| encrypted)?;
        Some(Site::new(true, false, &format!("{LABEL}{name}{port}")))
    }
}

impl Site {
    fn new(secure: bool, local: bool, authority: &str) -> Self {
        let scheme = if secure { "https" } else { "http" };
        Self { origin: format!("{scheme}://{authority}"), secure, local }
    }
}

/// The name whose console a host is, in lower case.
fn below(host: &str) -> Option<String> {
    let name = split(host).0.to_ascii_lowercase();
    name.strip_prefix(LABEL).filter(|name| !name.is_empty()).map(str::to_owned)
}

/// The name, and the port with its colon.
fn split(host: &str) -> (&str, &str) {
    match host.rfind(':') {
        // The colons of an IPv6 address stand in brackets.
        Some(at) if host.len() > at + 1 && host[at + 1..].bytes().all(|b| b.is_ascii_digit()) => {
            host.split_at(at)
        }
        _ => (host, ""),
    }
}

fn is_loopback(name: &str) -> bool {
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case(LOCALHOST)
        || bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sites(public: Option<&str>) -> Sites {
        Sites::new(["localhost", "Boxes.example.com", "boxes.example.com", "atoll.example.com"], public)
    }

    fn found(sites: &Sites, host: &str, encrypted: bool) -> Option<String> {
        sites.find(host, encrypted).map(|site| site.origin)
    }

    #[test]
    fn this_machine_needs_no_https() {
        let sites = sites(None);
        assert_eq!(found(&sites, "Console.localhost:4600", false).unwrap(), "http://console.localhost:4600");
        assert_eq!(found(&sites, "console.localhost", true).unwrap(), "https://console.localhost");
    }

    #[test]
    fn other_machines_do() {
        let host = "console.boxes.example.com";
        let behind = sites(Some("boxes.example.com"));
        assert_eq!(found(&sites(None), host, true).unwrap(), "https://console.boxes.example.com");
        assert_eq!(found(&behind, host, false).unwrap(), "https://console.boxes.example.com");
        assert_eq!(found(&sites(None), host, false), None);
        assert!(sites(None).is_named(host));
        let local = behind.find("console.localhost:1", false).unwrap();
        assert!(
            local.local && !local.secure,
            "a proxy for other machines does not encrypt what comes from this one"
        );
        let elsewhere = sites(Some("boxes.example.com:8443"));
        for named in [host, "console.boxes.example.com:8443", "console.boxes.example.com:4600"] {
            assert_eq!(found(&elsewhere, named, false).unwrap(), "https://console.boxes.example.com:8443");
        }
    }

    #[test]
    fn no_other_name_is_served() {
        for host in [
            "127.0.0.1:4600",
            "localhost:4600",
            "[::1]:4600",
            "boxes.example.com",
            "console.evil.example",
            "console.",
            "console",
            "3000-web.localhost:4600",
            "3000-console.localhost",
            "console.3000-web.localhost",
            "a.console.localhost",
            "console.localhost.",
            "console.localhost:",
            "console.localhost:80:80",
            "console.localhost@evil.example",
            "",
        ] {
            assert_eq!(found(&sites(Some("x")), host, true), None, "{host}");
            assert!(!sites(None).is_named(host), "{host}");
        }
    }

    #[test]
    fn clients_are_told_where_it_is() {
        let told =
            |host, encrypted, public| sites(public).for_client(Some(host), encrypted).map(|site| site.origin);
        assert_eq!(told("127.0.0.1:4600", false, None).unwrap(), "http://console.localhost:4600");
        assert_eq!(told("[::1]:4600", false, None).unwrap(), "http://console.localhost:4600");
        assert_eq!(told("console.localhost:4600", false, None).unwrap(), "http://console.localhost:4600");
        assert_eq!(told("localhost", true, None).unwrap(), "https://console.localhost");
        assert_eq!(told("atoll.example.com:1", true, None).unwrap(), "https://console.boxes.example.com:1");
        assert_eq!(told("10.0.0.1:4600", false, None), None);
        let proxied = told("127.0.0.1:4600", false, Some("atoll.example.com:8443")).unwrap();
        assert_eq!(proxied, "https://console.boxes.example.com:8443");
        let nameless = Sites::new(["localhost"], Some("box"));
        assert_eq!(nameless.for_client(Some("10.0.0.1"), true), None);
        assert_eq!(nameless.for_client(None, false).unwrap().origin, "http://console.localhost");
    }
}
