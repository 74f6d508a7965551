//! The guest agent as bytes: built by the build script for the target of this program, statically
//! linked, so that it runs in any root file system, even an empty one.

/// The program: a static ELF executable.
pub static GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/atoll-guest"));

/// `atoll-run`, which runs a command in another profile: as small as it is, because each profile has a copy.
pub static RUN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/atoll-run"));

/// BLAKE3 of [`GUEST`], lower-case hex: tells which agent a snapshot or a running sandbox carries.
pub const GUEST_BLAKE3: &str = env!("ATOLL_GUEST_BLAKE3");

#[cfg(test)]
mod tests {
    use super::*;

    /// Program header type of a dynamic loader's path, and of dynamic linking information.
    const PT_INTERP: u32 = 3;

    fn u16_at(offset: usize) -> usize {
        usize::from(u16::from_le_bytes(GUEST[offset..offset + 2].try_into().unwrap()))
    }

    #[test]
    fn it_is_a_static_elf_program() {
        assert_eq!(&GUEST[..4], b"\x7fELF");
        let table = usize::try_from(u64::from_le_bytes(GUEST[32..40].try_into().unwrap())).unwrap();
        let (size, count) = (u16_at(54), u16_at(56));
        for index in 0..count {
            let at = table + index * size;
            let kind = u32::from_le_bytes(GUEST[at..at + 4].try_into().unwrap());
            assert_ne!(kind, PT_INTERP, "the agent asks for a dynamic loader");
        }
        assert_eq!(GUEST_BLAKE3.len(), 64);
    }

    #[test]
    fn the_command_that_asks_is_small() {
        assert_eq!(&RUN[..4], b"\x7fELF");
        assert!(RUN.len() < 16 << 10, "{}", RUN.len());
    }
}
