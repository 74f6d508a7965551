//! Wildcards in the place of many names. Only past a threshold, never over names that other owners may have, and each
//! is told.

use std::collections::{BTreeMap, BTreeSet};

use atoll_core::policy::HostName;

/// Directories that have programs of everything: a wildcard there would allow all that an image has.
const GENERAL: [&str; 8] =
    ["", "/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/usr/libexec"];

/// Names that a wildcard stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fold<T> {
    /// The wildcard's part that is not `*`.
    pub(crate) below: T,
    /// What it stands for.
    pub(crate) names: BTreeSet<T>,
}

/// Domains below which at least `threshold` names lie; the longest first that has so many. None below which anybody
/// can have names: public suffixes such as `com`, `co.uk` or `github.io`.
pub(crate) fn domains(names: &BTreeSet<HostName>, threshold: usize) -> Vec<Fold<HostName>> {
    let mut left = names.clone();
    let mut folds = Vec::new();
    loop {
        let mut below: BTreeMap<HostName, BTreeSet<HostName>> = BTreeMap::new();
        for name in &left {
            for parent in parents(name) {
                below.entry(parent).or_default().insert(name.clone());
            }
        }
        let labels = |name: &HostName| name.as_str().split('.').count();
        let best = below
            .into_iter()
            .filter(|(_, names)| names.len() >= threshold)
            .max_by_key(|(parent, names)| (labels(parent), names.len()));
        let Some((below, names)) = best else { return folds };
        left.retain(|name| !names.contains(name));
        folds.push(Fold { below, names });
    }
}

/// Domains that a name lies below and that have an owner: no public suffixes.
fn parents(name: &HostName) -> Vec<HostName> {
    let mut parents = Vec::new();
    let mut rest = name.as_str();
    while let Some((_, parent)) = rest.split_once('.') {
        // Of a public suffix there is no registrable domain.
        if psl::domain_str(parent).is_none() {
            break;
        }
        parents.extend(parent.parse());
        rest = parent;
    }
    parents
}

/// Directories with at least `threshold` of the programs, but for those that have programs of everything.
pub(crate) fn directories(paths: &BTreeSet<String>, threshold: usize) -> Vec<Fold<String>> {
    let mut below: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in paths {
        if let Some((dir, _)) = path.rsplit_once('/')
            && !GENERAL.contains(&dir)
        {
            below.entry(dir.to_owned()).or_default().insert(path.clone());
        }
    }
    let many = below.into_iter().filter(|(_, names)| names.len() >= threshold);
    many.map(|(below, names)| Fold { below, names }).collect()
}

/// Prefixes, up to a slash, of at least `threshold` of the paths of requests; the longest first.
pub(crate) fn paths(paths: &BTreeSet<String>, threshold: usize) -> Vec<Fold<String>> {
    let mut left = paths.clone();
    let mut folds = Vec::new();
    loop {
        let mut below: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for path in &left {
            for (at, _) in path.match_indices('/') {
                below.entry(path[..at].to_owned()).or_default().insert(path.clone());
            }
        }
        let best = below
            .into_iter()
            .filter(|(_, names)| names.len() >= threshold)
            .max_by_key(|(prefix, names)| (prefix.matches('/').count(), names.len()));
        let Some((below, names)) = best else { return folds };
        left.retain(|path| !names.contains(path));
        folds.push(Fold { below, names });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(all: &[&str]) -> BTreeSet<HostName> {
        all.iter().map(|name| name.parse().unwrap()).collect()
    }

    #[test]
    fn domains_that_belong_to_somebody() {
        let folded = |all: &[&str]| -> Vec<String> {
            domains(&names(all), 3).iter().map(|fold| fold.below.to_string()).collect()
        };
        assert_eq!(folded(&["a.x.com", "b.x.com", "c.x.com", "d.y.com"]), ["x.com"]);
        assert_eq!(folded(&["a.x.com", "b.x.com"]), Vec::<String>::new());
        assert_eq!(folded(&["a.com", "b.com", "c.com"]), Vec::<String>::new());
        assert_eq!(folded(&["a.co.uk", "b.co.uk", "c.co.uk"]), Vec::<String>::new());
        assert_eq!(folded(&["a.github.io", "b.github.io", "c.github.io"]), Vec::<String>::new());
        assert_eq!(folded(&["a.s.x.com", "b.s.x.com", "c.s.x.com", "d.x.com"]), ["s.x.com"]);
        assert_eq!(folded(&["a.r.x.com", "b.s.x.com", "c.x.com"]), ["x.com"]);
    }

    #[test]
    fn directories_that_are_not_everybodys() {
        let all = |dir: &str| (0..5).map(|n| format!("{dir}/p{n}")).collect::<BTreeSet<_>>();
        assert_eq!(directories(&all("/opt/t"), 5)[0].below, "/opt/t");
        assert_eq!(directories(&all("/opt/t"), 6), []);
        for general in ["/usr/bin", "/bin", "/usr/local/bin", ""] {
            assert_eq!(directories(&all(general), 2), [], "{general}");
        }
    }

    #[test]
    fn prefixes_of_paths() {
        let all: BTreeSet<String> =
            ["/a/b/1", "/a/b/2", "/a/b/3", "/a/c", "/d"].map(str::to_owned).into_iter().collect();
        let folds = paths(&all, 3);
        assert_eq!((folds.len(), folds[0].below.as_str(), folds[0].names.len()), (1, "/a/b", 3));
        assert_eq!(paths(&all, 6), []);
    }
}
