//! What is put into requests on their way out, in arguments.

use std::collections::BTreeMap;

use atoll_core::policy::{
    Action, BasicAuth, DomainPattern, InjectRule, Origin, Placeholder, Rule, SecretRef, Template,
};
use clap::Args;

/// Injection.
#[derive(Debug, Default, Args)]
pub(crate) struct InjectArgs {
    /// Let it use a secret: NAME=HOST, such as OPENAI_API_KEY=api.openai.com. A placeholder stands in the
    /// variable NAME; the value is put in on the way to the host where Authorization or the usual headers for keys
    /// have it. After HOST, separated by commas: more hosts, env=VARIABLE, prefix=TEXT (of the placeholder),
    /// header=NAME, path, query, body (where it is put in, too), from=PROGRAM (only for this program of the image, such as
    /// from=/usr/lib/git-core/*; containers only), mask, plaintext (repeatable)
    #[arg(help_heading = "Network", long, value_name = "NAME=HOST[,…]", value_parser = parse_secret)]
    pub(crate) secret: Vec<InjectRule>,
    /// Change requests to a host: HOST[:PORT][/PATH]:WHAT, WHAT being header=NAME: VALUE, add-header=NAME:
    /// VALUE, remove-header=NAME, query=NAME=VALUE, bearer=VALUE or basic=USER:PASSWORD;
    /// {secret:NAME} in a value stands for a secret (repeatable)
    #[arg(help_heading = "Network", long, value_name = "HOST:WHAT", value_parser = parse_inject)]
    pub(crate) inject: Vec<InjectRule>,
}

impl InjectArgs {
    /// The rules, with names of their own.
    pub(crate) fn rules(self) -> Vec<InjectRule> {
        let mut rules: Vec<InjectRule> = Vec::new();
        for mut rule in self.secret.into_iter().chain(self.inject) {
            let base = rule.name.clone();
            let mut number = 1;
            while rules.iter().any(|other| other.name == rule.name) {
                number += 1;
                rule.name = format!("{base}-{number}");
            }
            rules.push(rule);
        }
        rules
    }
}

/// What must be allowed for injection rules to be of use: their hosts on their ports.
pub(crate) fn allowed(rules: &[InjectRule]) -> Result<Vec<Rule>, String> {
    let mut allowed = Vec::new();
    for rule in rules {
        let ports = if rule.ports.is_empty() { &[443_u16][..] } else { &rule.ports };
        for host in &rule.hosts {
            for port in ports {
                let one = Rule::parse_domain(Action::Allow, &format!("{host}:{port}"));
                // A program that alone may use a secret alone needs the host.
                let one = Rule { from: rule.from.clone(), ..one.map_err(|error| error.to_string())? };
                if !allowed.contains(&one) {
                    allowed.push(one);
                }
            }
        }
    }
    Ok(allowed)
}

pub(crate) fn parse_secret(text: &str) -> Result<InjectRule, String> {
    let (name, rest) =
        text.split_once('=').ok_or("write NAME=HOST, such as OPENAI_API_KEY=api.openai.com")?;
    let secret: SecretRef = name.parse().map_err(show)?;
    let mut rule = InjectRule { name: secret.name.clone(), ..InjectRule::default() };
    let mut placeholder = Placeholder {
        env: Some(secret.name.clone()),
        secret,
        prefix: None,
        headers: Vec::new(),
        path: false,
        query: false,
        body: false,
        value: None,
    };
    for item in rest.split(',') {
        match item.split_once('=') {
            Some(("env", variable)) => placeholder.env = Some(variable.to_owned()),
            Some(("prefix", prefix)) => placeholder.prefix = Some(prefix.to_owned()),
            Some(("header", name)) => placeholder.headers.push(name.to_owned()),
            Some(("from", program)) => rule.from = Some(Origin::parse(program)),
            Some((other, _)) => return Err(format!("'{other}' is not env, prefix, header or from")),
            None => match item {
                "path" => placeholder.path = true,
                "query" => placeholder.query = true,
                "body" => placeholder.body = true,
                "mask" => rule.mask_responses = true,
                "plaintext" => rule.allow_plaintext = true,
                host => add_host(&mut rule, host)?,
            },
        }
    }
    rule.bearer = Some(format!("{{secret:{}}}", placeholder.secret).parse::<Template>().map_err(show)?);
    rule.placeholders.push(placeholder);
    if rule.hosts.is_empty() { Err("it names no host".to_owned()) } else { Ok(rule) }
}

fn add_host(rule: &mut InjectRule, text: &str) -> Result<(), String> {
    let (host, port) = match text.rsplit_once(':') {
        None => (text, None),
        Some((host, port)) => {
            (host, Some(port.parse::<u16>().map_err(|_malformed| format!("'{port}' is no port"))?))
        }
    };
    rule.hosts.push(host.parse::<DomainPattern>().map_err(show)?);
    rule.ports.extend(port);
    Ok(())
}

const WHATS: [&str; 6] = [":header=", ":add-header=", ":remove-header=", ":query=", ":bearer=", ":basic="];

fn parse_inject(text: &str) -> Result<InjectRule, String> {
    let found = WHATS.iter().filter_map(|what| text.find(what).map(|at| (at, *what))).min();
    let (at, what) = found.ok_or("write HOST:header=NAME: VALUE, or another of the ways in --help")?;
    let (place, value) = (&text[..at], &text[at + what.len()..]);
    let (host, path) = match place.find('/') {
        None => (place, None),
        Some(slash) => (&place[..slash], Some(place[slash..].to_owned())),
    };
    let mut rule =
        InjectRule { name: host.to_owned(), paths: path.into_iter().collect(), ..InjectRule::default() };
    add_host(&mut rule, host)?;
    let template = |text: &str| text.parse::<Template>().map_err(show);
    let header = |value: &str| -> Result<BTreeMap<String, Template>, String> {
        let (name, value) = value.split_once(':').ok_or("write the header as NAME: VALUE")?;
        Ok(BTreeMap::from([(name.trim().to_owned(), template(value.trim())?)]))
    };
    match what {
        ":header=" => rule.headers = header(value)?,
        ":add-header=" => rule.add_headers = header(value)?,
        ":remove-header=" => rule.remove_headers = vec![value.trim().to_owned()],
        ":query=" => {
            let (name, value) = value.split_once('=').ok_or("write the parameter as NAME=VALUE")?;
            rule.query = BTreeMap::from([(name.to_owned(), template(value)?)]);
        }
        ":bearer=" => rule.bearer = Some(template(value)?),
        _ => {
            // The colon of a reference is not the one between user and password.
            let user_end = if value.starts_with("{secret:") {
                value.find('}').map(|end| end + 1).filter(|end| value[*end..].starts_with(':'))
            } else {
                value.find(':')
            };
            let end = user_end.ok_or("write USER:PASSWORD")?;
            let (username, password) = (template(&value[..end])?, template(&value[end + 1..])?);
            rule.basic = Some(BasicAuth { username, password });
        }
    }
    Ok(rule)
}

fn show(error: atoll_core::Error) -> String {
    match error.hint {
        Some(hint) => format!("{}; {hint}", error.message),
        None => error.message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets() {
        let rule = parse_secret("KEY=api.x.org,*.y.org,env=X_KEY,prefix=sk-,mask").unwrap();
        let hosts: Vec<_> = rule.hosts.iter().map(ToString::to_string).collect();
        assert_eq!(hosts, ["api.x.org", "*.y.org"]);
        assert_eq!(rule.bearer.as_ref().unwrap().as_str(), "{secret:KEY}");
        let placeholder = &rule.placeholders[0];
        assert_eq!((placeholder.env.as_deref(), placeholder.prefix.as_deref()), (Some("X_KEY"), Some("sk-")));
        assert!(rule.mask_responses && !placeholder.body && rule.ports.is_empty());
        let rule = parse_secret("KEY@2=x.org:8443,body").unwrap();
        assert_eq!((rule.ports.as_slice(), rule.placeholders[0].body), (&[8443][..], true));
        assert_eq!(rule.placeholders[0].env.as_deref(), Some("KEY"));
        let only = parse_secret("KEY=x.org").unwrap().placeholders.remove(0);
        assert!(!only.path && !only.query && !only.body && only.headers.is_empty());
        let more = parse_secret("KEY=x.org,path,query,header=X-Key").unwrap().placeholders.remove(0);
        assert!(more.path && more.query && !more.body && more.headers == ["X-Key"]);
        let allowed: Vec<_> = allowed(&[rule]).unwrap();
        assert_eq!(allowed.len(), 1);
        for bad in ["KEY", "KEY=", "=x.org", "KEY=x.org,wat=1", "KEY=x.org:0x", "KEY=env=A", "K Y=x.org"] {
            assert!(parse_secret(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn injections() {
        let rule = parse_inject("x.org:8443/v1:header=X-Key: a {secret:KEY}").unwrap();
        assert_eq!(rule.headers["X-Key"].as_str(), "a {secret:KEY}");
        assert_eq!((rule.ports.as_slice(), rule.paths.as_slice()), (&[8443][..], &["/v1".to_owned()][..]));
        let basic = parse_inject("x.org:basic={secret:U}:{secret:P}").unwrap().basic.unwrap();
        assert_eq!((basic.username.as_str(), basic.password.as_str()), ("{secret:U}", "{secret:P}"));
        let basic = parse_inject("x.org:basic=me:{secret:P}").unwrap().basic.unwrap();
        assert_eq!((basic.username.as_str(), basic.password.as_str()), ("me", "{secret:P}"));
        assert_eq!(parse_inject("x.org:query=key={secret:K}").unwrap().query["key"].as_str(), "{secret:K}");
        assert_eq!(parse_inject("x.org:remove-header=Cookie").unwrap().remove_headers, ["Cookie"]);
        assert!(parse_inject("x.org:bearer={secret:K}").unwrap().bearer.is_some());
        for bad in
            ["x.org", "x.org:wat=1", ":header=A: b", "x.org:header=A", "x.org:basic=a", "x.org:query=a"]
        {
            assert!(parse_inject(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_differ() {
        let rule = || parse_inject("x.org:bearer=a").unwrap();
        let rules = InjectArgs { secret: Vec::new(), inject: vec![rule(), rule(), rule()] }.rules();
        let names: Vec<_> = rules.iter().map(|rule| rule.name.as_str()).collect();
        assert_eq!(names, ["x.org", "x.org-2", "x.org-3"]);
    }
}
