//! Rules by what brought a program: a layer of the image, a Debian package.

use std::path::Path;

use atoll_core::execution::{ExecutionAction, ExecutionRule, Programs};
use atoll_isolation::{IsolationError, RootFs};

use super::{codes, set, with};
use crate::locked::{KILLED, fill, make, policy, watched};

fn layer(digit: &str, path: Option<&str>) -> ExecutionRule {
    let layer = Some(format!("sha256:{}", digit.repeat(64)));
    ExecutionRule { layer, path: path.map(str::to_owned), ..ExecutionRule::default() }
}

fn package(name: &str) -> ExecutionRule {
    ExecutionRule { package: Some(name.to_owned()), ..ExecutionRule::default() }
}

fn refused(result: Result<(), IsolationError>) -> String {
    match result {
        Err(IsolationError::BadPolicy(why)) => why,
        other => panic!("{other:?}"),
    }
}

fn list(layer: &Path, file: &str, text: &[u8]) {
    let lists = layer.join("var/lib/dpkg/info");
    std::fs::create_dir_all(&lists).unwrap();
    std::fs::write(lists.join(file), text).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_and_packages_name_what_they_brought_and_the_sandbox_has_no_say() {
    let (mut harness, sink, witness) = watched();
    let dir = |digit: &str| harness.path.join(digit.repeat(64)).join("root");
    let (low, high) = (dir("a"), dir("b"));
    fill(&low, &["/bin/dash", "/bin/echo", "/bin/true", "/bin/cp", "/bin/mkdir", "/bin/rm"]);
    std::fs::create_dir_all(high.join("bin")).unwrap();
    std::fs::copy("/bin/echo", high.join("bin/above")).unwrap();
    list(&low, "say.list", b"/.\n/bin\n/bin/echo\n/bin/none\n/usr/share/doc/say\n");
    list(&low, "two:amd64.list", b"/bin/true\n/../../bin/above\n/../../../../../../usr/bin/id\n");
    list(&low, "empty.list", b"/bin\nbin/echo\n\n");
    list(&low, "huge.list", &vec![b'x'; (8 << 20) + 1]);
    list(&low, "bytes.list", b"/bin/\xff\n");
    std::os::unix::fs::symlink("/etc/hostname", low.join("var/lib/dpkg/info/link.list")).unwrap();
    harness.root = RootFs::Layers(vec![low, high]);

    let first = with(Programs::Image, vec![layer("b", None)]);
    let sandbox = make(&harness, &policy(&harness, first)).await;
    assert_eq!(codes(&sandbox, &["/bin/above RAN", "/bin/echo RAN"]).await, [KILLED, 0]);
    let said = &sink.decisions(&sandbox.id, 1).await[0].rule;
    assert_eq!(*said, format!("rule 1 (deny layer sha256:{})", "b".repeat(64)));
    // With a path it is what that layer has there.
    set(&sandbox, with(Programs::Image, vec![layer("a", Some("/bin/echo"))])).await.unwrap();
    assert_eq!(codes(&sandbox, &["/bin/above RAN", "/bin/echo RAN", "/bin/true"]).await, [0, KILLED, 0]);

    // A file that the sandbox makes is in no layer, and in no package's list.
    let forge = "mkdir -p /var/lib/dpkg/info; echo /bin/true > /var/lib/dpkg/info/say.list; rm /bin/above";
    assert_eq!(codes(&sandbox, &[forge]).await, [0]);
    set(&sandbox, with(Programs::Image, vec![package("say")])).await.unwrap();
    assert_eq!(codes(&sandbox, &["/bin/echo RAN", "/bin/true"]).await, [KILLED, 0]);
    // A list leads nowhere but into the image.
    set(&sandbox, with(Programs::Image, vec![package("two")])).await.unwrap();
    assert_eq!(codes(&sandbox, &["/bin/echo RAN", "/bin/true"]).await, [0, KILLED]);
    let allow = |rule: ExecutionRule| ExecutionRule { action: ExecutionAction::Allow, ..rule };
    let listed = vec![allow(package("say")), allow(layer("a", Some("/bin/dash")))];
    set(&sandbox, with(Programs::Listed, listed)).await.unwrap();
    assert_eq!(codes(&sandbox, &["/bin/echo RAN", "/bin/true"]).await, [0, KILLED]);

    // The error says what is wrong, and the earlier policy stays in force.
    for (rule, why) in [
        (package("none"), "the image has no Debian package 'none'"),
        (package("empty"), "the package 'empty' has no programs"),
        (package("huge"), "more than 8388608 bytes"),
        (package("bytes"), "bytes.list cannot be read"),
        (package("link"), "the image has no Debian package 'link'"),
        (layer("c", None), "it has sha256:aaaa"),
        (layer("b", Some("/bin/dash")), "the image has no '/bin/dash'"),
    ] {
        let said = refused(set(&sandbox, with(Programs::Image, vec![rule])).await);
        assert!(said.starts_with("execution.rules[0]: ") && said.contains(why), "{said}");
    }
    assert_eq!(codes(&sandbox, &["/bin/echo RAN", "/bin/true"]).await, [0, KILLED]);
    sandbox.destroy().await;
    witness.close();
}
