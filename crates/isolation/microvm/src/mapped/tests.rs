use proptest::prelude::*;

use super::*;

const SIZE: u64 = 192 << 20;

/// A block as QEMU describes it, from the byte `at` of the file on; gives where its pages end.
fn put_block(file: &mut Vec<u8>, name: &str, bytes: u64) -> u64 {
    file.push(u8::try_from(name.len()).unwrap());
    file.extend(name.as_bytes());
    file.extend(bytes.to_be_bytes());
    let bitmap_at = file.len() as u64 + MAPPED_HEADER_BYTES;
    let memory_at = (bitmap_at + bytes / PAGE_BYTES / 8).next_multiple_of(PAGES_ALIGNMENT);
    file.extend(MAPPED_VERSION.to_be_bytes());
    for number in [PAGE_BYTES, bitmap_at, memory_at] {
        file.extend(number.to_be_bytes());
    }
    memory_at + bytes
}

/// The beginning of a file, up to the description of its only block, and the file's length.
fn good() -> (Vec<u8>, u64) {
    let mut file = Vec::new();
    file.extend([MAGIC, VERSION].map(u32::to_be_bytes).concat());
    file.push(CONFIGURATION);
    file.extend(7_u32.to_be_bytes());
    file.extend(b"microvm");
    file.push(SUBSECTION);
    file.push(26);
    file.extend(b"configuration/capabilities");
    file.extend([1_u32, 1].map(u32::to_be_bytes).concat());
    file.push(10);
    file.extend(b"mapped-ram");
    file.push(SECTION_START);
    file.extend(2_u32.to_be_bytes());
    file.push(3);
    file.extend(RAM_SECTION);
    file.extend([0, RAM_VERSION].map(u32::to_be_bytes).concat());
    file.extend((SIZE | 4).to_be_bytes());
    let end = put_block(&mut file, "memory", SIZE);
    (file, end + 100)
}

/// Reads the bytes; what is behind them, up to the file's length, is zeros.
fn find_in(bytes: &[u8], length: u64) -> io::Result<Place> {
    let mut reads = 0;
    let found = find(length, SIZE, |wanted, at| {
        reads += 1;
        for (byte, at) in wanted.iter_mut().zip(at..) {
            if at >= length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            *byte = usize::try_from(at).ok().and_then(|at| bytes.get(at)).copied().unwrap_or(0);
        }
        Ok(())
    });
    assert!(reads < 100_000, "{reads} reads");
    found
}

/// What the callers of `find` rely on.
fn assert_within(place: Place, length: u64) {
    assert!(place.memory_at.is_multiple_of(PAGES_ALIGNMENT));
    assert!(place.bitmap_bytes == SIZE / PAGE_BYTES / 8);
    assert!(place.bitmap_at + place.bitmap_bytes <= place.memory_at);
    assert!(place.memory_at + SIZE <= length);
}

#[test]
fn what_qemu_writes_is_found() {
    let (file, length) = good();
    let place = find_in(&file, length).unwrap();
    assert_eq!(place.memory_at, 1 << 20);
    assert_eq!(place.bitmap_at, file.len() as u64);
    assert_within(place, length);
}

#[test]
fn a_block_before_the_memory_is_skipped() {
    let (mut file, _) = good();
    let at = file.len() - 43;
    file.truncate(at);
    let total = file.len() - 8;
    file[total..].copy_from_slice(&((SIZE + 65536) | 4).to_be_bytes());
    let next = put_block(&mut file, "pc.bios", 65536);
    file.resize(usize::try_from(next).unwrap(), 0);
    let end = put_block(&mut file, "memory", SIZE);
    assert_within(find_in(&file, end).unwrap(), end);
    assert!(find_in(&file, end - 1).is_err(), "a file that is cut off");
}

#[test]
fn the_bitmap_is_cleared_and_nothing_else() {
    let (mut bytes, length) = good();
    let bitmap_at = bytes.len();
    let bitmap_bytes = usize::try_from(SIZE / PAGE_BYTES / 8).unwrap();
    bytes.extend(vec![0xff; bitmap_bytes + 1]);
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&bytes, 0).unwrap();
    file.set_len(length).unwrap();
    assert_eq!(make_mappable(&file, SIZE).unwrap(), 1 << 20);
    let mut after = vec![0; bytes.len()];
    file.read_exact_at(&mut after, 0).unwrap();
    bytes[bitmap_at..bitmap_at + bitmap_bytes].fill(0);
    assert!(after == bytes);
}

proptest! {
    /// For any bytes that a VMM writes, `find` gives a place inside the file, or an error.
    #[test]
    fn anything_at_all(bytes in proptest::collection::vec(any::<u8>(), 0..400), length in any::<u64>()) {
        if let Ok(place) = find_in(&bytes, length) {
            assert_within(place, length);
        }
    }

    /// The same for what looks like a machine at first.
    #[test]
    fn almost_right(
        changes in proptest::collection::vec((0_usize..140, any::<u8>()), 1..6),
        length in prop_oneof![0..(400_u64 << 20), any::<u64>()],
    ) {
        let (mut file, good_length) = good();
        for (at, byte) in changes {
            if let Some(slot) = file.get_mut(at) {
                *slot = byte;
            }
        }
        for length in [length, good_length] {
            if let Ok(place) = find_in(&file, length) {
                assert_within(place, length);
            }
        }
    }
}
