//! The object that is committed is what its source gives.

use std::path::Path;
use std::process::Command;

#[test]
fn the_object_is_made_of_its_source() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("bpf");
    let dir = tempfile::tempdir().unwrap();
    for name in ["Makefile", "gate.h", "kernel.h", "profile.h", "sender.h", "witness.bpf.c"] {
        std::fs::copy(source.join(name), dir.path().join(name)).unwrap();
    }
    let made = Command::new("make").args(["-s", "-C"]).arg(dir.path()).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let read = |dir: &Path| std::fs::read(dir.join("witness.bpf.o")).unwrap();
    assert!(
        read(dir.path()) == read(&source),
        "run 'make -B -C crates/isolation/witness/bpf' and commit the object"
    );
}
