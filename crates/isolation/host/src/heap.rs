//! The heap of this process.

/// Gives memory that was freed back to the kernel. The C library keeps it otherwise: after many threads have had much at
/// once, most of it. Blocks for some milliseconds. Does nothing with another C library than GNU's.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "malloc_trim has no safe wrapper")]
pub fn give_memory_back() {
    // SAFETY: takes no pointers, and may be called by any thread at any time.
    unsafe { libc::malloc_trim(0) };
}

/// As it is with GNU's C library; with another one it does nothing.
#[cfg(not(target_env = "gnu"))]
pub fn give_memory_back() {}
