//! Returns memory that the allocator keeps unused to the system. Not an allocator.
//!
//! glibc's malloc returns the top of a heap automatically. A free block below a block in use stays resident, so
//! that a process keeps most of its peak. `malloc_trim(3)` returns such blocks page by page.

/// Whether [`release`] has an effect on this system.
pub const RELEASES: bool = cfg!(all(target_os = "linux", target_env = "gnu"));

/// Returns unused pages to the system. Takes about a tenth of a second for each gigabyte, and holds
/// the lock of one part of the heap (an arena) at a time.
///
/// Has no effect if the C library is not glibc.
pub fn release() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "malloc_trim is a C function")]
    // SAFETY: it takes no pointer, and may be called from any thread at any time.
    let _returned = unsafe { libc::malloc_trim(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Resident memory of this process.
    fn resident_bytes() -> Option<usize> {
        let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
        let pages: usize = statm.split(' ').nth(1)?.parse().ok()?;
        Some(pages * 4_096)
    }

    #[test]
    fn fragmented_memory_is_returned() {
        // Below the size from which each block is a separate mapping (128 kB).
        let mut blocks: Vec<Vec<u8>> = (0..2_000).map(|_| vec![1; 64 << 10]).collect();
        let last = blocks.pop();
        let full = resident_bytes();
        drop(blocks);
        release();
        let (Some(full), Some(after)) = (full, resident_bytes()) else { return };
        assert!(!RELEASES || after + (100 << 20) < full, "{after} of {full} bytes remain");
        assert_eq!(last.map(|block| block.len()), Some(64 << 10));
    }
}
