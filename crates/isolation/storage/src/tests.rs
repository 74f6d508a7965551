use std::os::unix::fs::FileExt;

use super::*;

fn storage(dir: &Path, pool: PoolSize) -> Storage {
    let instance = format!("{:08x}", std::process::id());
    Storage::open(&StorageConfig { dir: dir.to_owned(), instance, pool }).unwrap()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_copy_is_sparse_and_equal() {
    let dir = tempfile::Builder::new().prefix("atoll-storage-").tempdir().unwrap();
    let storage = storage(dir.path(), PoolSize::None);
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    let image = File::create(&from).unwrap();
    image.set_len(1 << 30).unwrap();
    image.write_all_at(b"content", 1 << 20).unwrap();
    let copy = storage.duplicate(&from, &to).unwrap();
    let mut seen = [0; 7];
    copy.read_exact_at(&mut seen, 1 << 20).unwrap();
    assert_eq!(&seen, b"content");
    use std::os::unix::fs::MetadataExt;
    let meta = copy.metadata().unwrap();
    assert!(meta.len() == 1 << 30 && meta.blocks() * 512 < 1 << 20, "{meta:?}");
    // What is there is not overwritten.
    assert!(storage.duplicate(&from, &to).is_err());
}

#[test]
fn a_pool_is_found_again_and_keeps_what_is_in_it() {
    assert!(is_root(), "a pool is mounted, which needs root");
    let dir = tempfile::Builder::new().prefix("atoll-storage-").tempdir().unwrap();
    let first = storage(dir.path(), PoolSize::Bytes(0));
    if first.kind() == Kind::Native {
        return;
    }
    assert_eq!(first.kind(), Kind::Pool, "{:?}", first.check());
    let id = SnapshotId::from_parts(1, 2);
    let disk = first.make_artifact_disk(&id, 1 << 30).unwrap();
    disk.write_all_at(b"content", 12_345).unwrap();
    fs::write(first.disks().join("waits"), "x").unwrap();
    // A second server while something still holds the first one's.
    let second = storage(dir.path(), PoolSize::Bytes(640 << 20));
    assert_eq!(second.artifacts().unwrap(), std::slice::from_ref(&id));
    drop((first, disk));
    assert!(second.room().unwrap().total_bytes > 500 << 20, "it did not grow: {:?}", second.room());
    drop(second);
    let third = storage(dir.path(), PoolSize::Bytes(0));
    assert!(!third.disks().join("waits").try_exists().is_ok_and(|there| there), "what waited is thrown away");
    let disk = third.artifact_disk(&id).unwrap();
    let clone = third.duplicate(&disk, &third.disks().join("clone")).unwrap();
    let mut seen = [0; 7];
    clone.read_exact_at(&mut seen, 12_345).unwrap();
    assert_eq!(&seen, b"content");
    third.remove_artifact(&id).unwrap();
    third.remove_artifact(&id).unwrap();
    assert!(third.artifacts().unwrap().is_empty());
    let path = dir.path().canonicalize().unwrap();
    drop((clone, third));
    let left: Vec<_> = loops_in_use()
        .unwrap()
        .into_iter()
        .filter(|(_, image)| Path::new(image).starts_with(&path))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_copy_of_a_pool_beside_the_original_says_so() {
    assert!(is_root(), "a pool is mounted, which needs root");
    let dir = tempfile::Builder::new().prefix("atoll-storage-").tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    let first = storage(&one, PoolSize::Bytes(0));
    if first.kind() == Kind::Native {
        return;
    }
    fs::create_dir(&two).unwrap();
    let (from, to) = (File::open(one.join("pool.img")).unwrap(), File::create(two.join("pool.img")).unwrap());
    clone::copy(&from, &to).unwrap();
    let config =
        StorageConfig { dir: two, instance: format!("{:08x}", std::process::id()), pool: PoolSize::Bytes(0) };
    let said = Storage::open(&config).unwrap_err().to_string();
    assert!(said.contains("is a copy of") && said.contains("one/pool.img"), "{said}");
    drop(first);
}

/// Blocks of a file that are written, and how far one is from the next.
const SCATTERED: (u64, u64) = (48, 1 << 20);

/// Bytes that a file takes once some of its blocks were written, far apart.
fn taken_by_scattered_blocks(file: &File) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let (count, distance) = SCATTERED;
    file.set_len(count * distance).unwrap();
    for number in 0..count {
        file.write_all_at(&[1; 4096], number * distance).unwrap();
    }
    file.sync_all().unwrap();
    file.metadata().unwrap().blocks() * 512
}

/// The guard stops the sandboxes while there is room for what they have written: no disk may take more than that.
#[test]
fn what_is_written_far_apart_takes_the_room_that_it_has() {
    assert!(is_root(), "a pool is mounted, which needs root");
    let dir = tempfile::Builder::new().prefix("atoll-storage-").tempdir().unwrap();
    let storage = storage(dir.path(), PoolSize::Bytes(0));
    let waits = File::create_new(storage.disks().join("waits")).unwrap();
    let kept = storage.make_artifact_disk(&SnapshotId::from_parts(1, 2), 1 << 20).unwrap();
    for file in [waits, kept] {
        let taken = taken_by_scattered_blocks(&file);
        assert!(taken < 4 * SCATTERED.0 * 4096, "{taken} bytes for {} blocks", SCATTERED.0);
    }
}

#[test]
fn the_disk_of_an_artifact_is_moved_and_what_is_opened_is_what_lies_there() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::Builder::new().prefix("atoll-storage-").tempdir().unwrap();
    let storage = storage(dir.path(), PoolSize::None);
    let (id, path) = (SnapshotId::from_parts(1, 2), storage.disks().join("moved"));
    assert!(matches!(storage.move_artifact_disk(&id, &path), Err(IsolationError::NoArtifact)));
    drop(storage.make_artifact_disk(&id, 1 << 20).unwrap());
    let moved = storage.move_artifact_disk(&id, &path).unwrap();
    assert_eq!(moved.metadata().unwrap().ino(), fs::metadata(&path).unwrap().ino());
    assert!(matches!(storage.artifact_disk(&id), Err(IsolationError::NoArtifact)));
    storage.remove_artifact(&id).unwrap();
}
