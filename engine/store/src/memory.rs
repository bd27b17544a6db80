//! Counts the memory that SQLite holds for each thread. Not an allocator: SQLite's own one allocates.
//!
//! A statement runs on one thread, and SQLite has no limit for the memory of one statement or one connection. The memory
//! of the process is no measure of it, because the C library keeps what a statement frees, and the next one reuses it.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use rusqlite::ffi::{self, sqlite3_mem_methods};

thread_local! {
    /// Bytes that this thread allocated, without those that it freed.
    static HELD: Cell<i64> = const { Cell::new(0) };
}

/// The functions of SQLite's own allocator.
#[derive(Clone, Copy)]
struct Allocator {
    malloc: unsafe extern "C" fn(c_int) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
    realloc: unsafe extern "C" fn(*mut c_void, c_int) -> *mut c_void,
    size: unsafe extern "C" fn(*mut c_void) -> c_int,
}

/// `None` if SQLite was in use before [`start_counting`], so that the memory of a thread is not known.
static ALLOCATOR: OnceLock<Option<Allocator>> = OnceLock::new();

/// Starts to count. Called before the first connection is opened.
pub(crate) fn start_counting() {
    ALLOCATOR.get_or_init(replace);
}

#[expect(unsafe_code, reason = "rusqlite has no function for the configuration of memory")]
fn replace() -> Option<Allocator> {
    let mut methods = sqlite3_mem_methods {
        xMalloc: None,
        xFree: None,
        xRealloc: None,
        xSize: None,
        xRoundup: None,
        xInit: None,
        xShutdown: None,
        pAppData: std::ptr::null_mut(),
    };
    // SAFETY: SQLite fills the struct, and refuses if it is in use.
    let known = unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_GETMALLOC, &raw mut methods) };
    let allocator = Allocator {
        malloc: methods.xMalloc?,
        free: methods.xFree?,
        realloc: methods.xRealloc?,
        size: methods.xSize?,
    };
    methods.xMalloc = Some(malloc);
    methods.xFree = Some(free);
    methods.xRealloc = Some(realloc);
    // SAFETY: SQLite copies the struct, and refuses if it is in use. The functions call those that it would use otherwise,
    // so a block that was allocated before can be freed afterwards.
    let replaced = unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_MALLOC, &raw mut methods) };
    (known == ffi::SQLITE_OK && replaced == ffi::SQLITE_OK).then_some(allocator)
}

/// Bytes that SQLite holds for this thread, or for the process if those of a thread are not known. Only differences have
/// a meaning.
pub(crate) fn held() -> i64 {
    match ALLOCATOR.get() {
        Some(Some(_)) => HELD.get(),
        _ => held_by_process(),
    }
}

#[expect(unsafe_code, reason = "rusqlite has no function for the used memory")]
fn held_by_process() -> i64 {
    // SAFETY: it takes no argument, and may be called at any time.
    unsafe { ffi::sqlite3_memory_used() }
}

fn allocator() -> Allocator {
    // Another thread can be here before `replace` has returned.
    ALLOCATOR.wait().expect("SQLite uses the functions that replace its own")
}

#[expect(unsafe_code, reason = "SQLite calls it")]
unsafe extern "C" fn malloc(bytes: c_int) -> *mut c_void {
    let Allocator { malloc, size, .. } = allocator();
    // SAFETY: the argument is SQLite's, and the block is one of the same allocator.
    unsafe {
        let block = malloc(bytes);
        if !block.is_null() {
            HELD.set(HELD.get() + i64::from(size(block)));
        }
        block
    }
}

#[expect(unsafe_code, reason = "SQLite calls it")]
unsafe extern "C" fn free(block: *mut c_void) {
    let Allocator { free, size, .. } = allocator();
    // SAFETY: the block is one of the same allocator, and SQLite does not use it afterwards.
    unsafe {
        if !block.is_null() {
            HELD.set(HELD.get() - i64::from(size(block)));
        }
        free(block);
    }
}

#[expect(unsafe_code, reason = "SQLite calls it")]
unsafe extern "C" fn realloc(block: *mut c_void, bytes: c_int) -> *mut c_void {
    let Allocator { realloc, size, .. } = allocator();
    // SAFETY: the arguments are SQLite's, and the block is one of the same allocator. A failed reallocation leaves it.
    unsafe {
        let before = if block.is_null() { 0 } else { i64::from(size(block)) };
        let moved = realloc(block, bytes);
        if !moved.is_null() {
            HELD.set(HELD.get() - before + i64::from(size(moved)));
        }
        moved
    }
}
