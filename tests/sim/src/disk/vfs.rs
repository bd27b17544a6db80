//! The VFS: SQLite's unix VFS with a [`Machine`] that observes every call and decides its result.
//!
//! The only place of this project with `unsafe`: a VFS is a C struct of C functions, and SQLite
//! allocates the memory of files. The assumptions, from <https://www.sqlite.org/c3ref/vfs.html> and
//! <https://www.sqlite.org/c3ref/io_methods.html>:
//! - `xOpen` receives `szOsFile` bytes, zeroed and aligned as by `malloc`; the other methods are
//!   called with that memory only after an `xOpen` that set its methods, and not after `xClose`.
//! - A name passed to `xOpen` stays valid until the file is closed, and was produced by
//!   `xFullPathname`.
//! - One connection calls from one thread at a time; several connections may call concurrently, so
//!   all shared state is in the machine, behind its lock.
//!
//! A registered VFS and its name are never freed: a leaked connection may still refer to them. That
//! is a few hundred bytes per machine, in tests.
#![expect(unsafe_code, reason = "a VFS is a table of C functions")]

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use rusqlite::ffi;

use super::machine::{CallVerdict, Kind, Machine, Synced};

/// A file in SQLite's memory: this struct, followed by that of the unix VFS.
#[repr(C)]
struct File {
    methods: *const ffi::sqlite3_io_methods,
    /// Its reference to the machine, released on close.
    machine: *const Machine,
    /// The machine's number of the file; 0 for a temporary file, which the machine ignores.
    number: u64,
    /// Whether its next sync also syncs the folder.
    syncs_folder: bool,
    /// Sync failures that it has reported.
    reported: u64,
}

const INNER_AT: usize = size_of::<File>().next_multiple_of(16);

/// A VFS that is registered with SQLite while this exists.
pub(super) struct Registered {
    vfs: *mut ffi::sqlite3_vfs,
    name: &'static str,
}

// SAFETY: the struct behind the pointer is written before registration, and later only by SQLite
// itself, under SQLite's own lock.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl Registered {
    pub(super) fn new(machine: &Arc<Machine>) -> Registered {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let name = format!("abide-faulty-{}", NUMBERS.fetch_add(1, Ordering::Relaxed));
        let c_name = CString::new(name.as_str()).expect("the name contains no NUL");
        let base = unix();
        let vfs = ffi::sqlite3_vfs {
            szOsFile: base.szOsFile + c_int::try_from(INNER_AT).expect("it is small"),
            pNext: ptr::null_mut(),
            zName: c_name.into_raw(),
            // Leaked, see above; the machine itself is not.
            pAppData: Box::into_raw(Box::new(Arc::downgrade(machine))).cast(),
            xOpen: Some(open),
            xDelete: Some(delete),
            xAccess: Some(access),
            xFullPathname: Some(full_pathname),
            xDlOpen: None,
            xDlError: None,
            xDlSym: None,
            xDlClose: None,
            // The other methods do not use the VFS argument.
            ..*base
        };
        let vfs = Box::into_raw(Box::new(vfs));
        // SAFETY: the struct is never freed and has the layout of version 3, like the unix VFS.
        let registered = unsafe { ffi::sqlite3_vfs_register(vfs, 0) };
        assert_eq!(registered, ffi::SQLITE_OK, "SQLite takes a VFS");
        Registered { vfs, name: name.leak() }
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: it was registered by `new`, and is not freed.
        unsafe { ffi::sqlite3_vfs_unregister(self.vfs) };
    }
}

/// SQLite's own VFS of this system.
fn unix() -> &'static mut ffi::sqlite3_vfs {
    // SAFETY: without a name it is the default VFS, which SQLite has in static memory and does not
    // change. It is only read, and passed back to its own functions.
    unsafe { ffi::sqlite3_vfs_find(c"unix".as_ptr()).as_mut().expect("this system has a VFS") }
}

/// SQLite's file memory as our struct and that of the unix VFS.
///
/// # Safety
/// `file` was opened by [`open`], or is being opened by it.
unsafe fn parts<'a>(file: *mut ffi::sqlite3_file) -> (&'a mut File, *mut ffi::sqlite3_file) {
    // SAFETY: SQLite allocated `szOsFile` bytes, which covers both, and nothing else accesses them
    // meanwhile.
    unsafe { (&mut *file.cast::<File>(), file.byte_add(INNER_AT)) }
}

/// A method of the unix VFS's file.
macro_rules! inner {
    ($inner:expr, $method:ident $(, $argument:expr)*) => {
        ((*(*$inner).pMethods).$method.expect("the unix VFS has every method"))(
            $inner $(, $argument)*
        )
    };
}

impl File {
    fn machine(&self) -> &Machine {
        // SAFETY: `open` stored a reference that `close` releases.
        unsafe { &*self.machine }
    }

    /// Counts a call on a known file; an error code if it must fail.
    fn ask(&self, kind: Kind, code: c_int) -> Result<(), c_int> {
        if self.number == 0 {
            return Ok(());
        }
        output(self.machine().call(kind), code)
    }
}

fn output(verdict: CallVerdict, code: c_int) -> Result<(), c_int> {
    match verdict {
        CallVerdict::Go => Ok(()),
        CallVerdict::Full => Err(ffi::SQLITE_FULL),
        CallVerdict::Fail | CallVerdict::Crash | CallVerdict::Down => Err(code),
    }
}

/// The return code of a method.
fn code(outcome: Result<c_int, c_int>) -> c_int {
    outcome.unwrap_or_else(|code| code)
}

/// `None` if the machine no longer exists.
unsafe fn machine_of(vfs: *mut ffi::sqlite3_vfs) -> Option<Arc<Machine>> {
    // SAFETY: `new` stored it, and it is never removed.
    unsafe { (*(*vfs).pAppData.cast::<Weak<Machine>>()).upgrade() }
}

unsafe fn path_of<'a>(name: *const c_char) -> &'a Path {
    // SAFETY: SQLite's names end with a NUL.
    let bytes = unsafe { CStr::from_ptr(name) }.to_bytes();
    Path::new(OsStr::from_bytes(bytes))
}

unsafe extern "C" fn open(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: the contract of `xOpen`, see the top of the file.
    unsafe {
        let (ours, inner) = parts(file);
        ours.methods = ptr::null();
        let Some(machine) = machine_of(vfs) else { return ffi::SQLITE_CANTOPEN };
        let tracked = !name.is_null() && flags & ffi::SQLITE_OPEN_DELETEONCLOSE == 0;
        let mut before = None;
        if tracked {
            if let Err(code) = output(machine.call(Kind::Open), ffi::SQLITE_CANTOPEN) {
                return code;
            }
            before = std::fs::read(path_of(name)).ok();
        }
        let base = unix();
        let opened = base.xOpen.expect("a VFS opens files")(base, name, inner, flags, out_flags);
        if opened != ffi::SQLITE_OK {
            return opened;
        }
        let journal = ffi::SQLITE_OPEN_WAL | ffi::SQLITE_OPEN_MAIN_JOURNAL;
        ours.number = if tracked { machine.opened(path_of(name), || before) } else { 0 };
        ours.reported = machine.failures(ours.number);
        ours.syncs_folder = flags & ffi::SQLITE_OPEN_CREATE != 0 && flags & journal != 0;
        ours.methods = &METHODS;
        if tracked {
            machine.handle_made();
        }
        ours.machine = Arc::into_raw(machine);
        ffi::SQLITE_OK
    }
}

unsafe extern "C" fn delete(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    sync_folder: c_int,
) -> c_int {
    // SAFETY: the contract of `xDelete`.
    unsafe {
        let Some(machine) = machine_of(vfs) else { return ffi::SQLITE_IOERR_DELETE };
        if let Err(code) = output(machine.call(Kind::Delete), ffi::SQLITE_IOERR_DELETE) {
            return code;
        }
        let base = unix();
        let deleted = base.xDelete.expect("a VFS removes files")(base, name, sync_folder);
        if deleted == ffi::SQLITE_OK {
            machine.removed(path_of(name), sync_folder != 0);
        }
        deleted
    }
}

unsafe extern "C" fn access(
    _: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    let base = unix();
    // SAFETY: the unix VFS's own method, on itself.
    unsafe { base.xAccess.expect("a VFS looks for files")(base, name, flags, out) }
}

unsafe extern "C" fn full_pathname(
    _: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    bytes: c_int,
    out: *mut c_char,
) -> c_int {
    let base = unix();
    // SAFETY: the unix VFS's own method, on itself.
    unsafe { base.xFullPathname.expect("a VFS makes full paths")(base, name, bytes, out) }
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: the file is open. (Also without power: the handle is closed with the process.)
    unsafe {
        let (ours, inner) = parts(file);
        if ours.number > 0 {
            ours.machine().handle_closed();
        }
        drop(Arc::from_raw(ours.machine));
        inner!(inner, xClose)
    }
}

unsafe extern "C" fn read(
    file: *mut ffi::sqlite3_file,
    into: *mut c_void,
    bytes: c_int,
    offset: i64,
) -> c_int {
    // SAFETY: the file is open, and `into` has space for `bytes`.
    unsafe {
        let (ours, inner) = parts(file);
        if let Err(code) = ours.ask(Kind::Read, ffi::SQLITE_IOERR_READ) {
            // A short read: half of the data is read, and the result says so.
            inner!(inner, xRead, into, bytes / 2, offset);
            return code;
        }
        inner!(inner, xRead, into, bytes, offset)
    }
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    from: *const c_void,
    bytes: c_int,
    offset: i64,
) -> c_int {
    // SAFETY: the file is open, and `from` contains `bytes`.
    unsafe {
        let (ours, inner) = parts(file);
        if ours.number == 0 {
            return inner!(inner, xWrite, from, bytes, offset);
        }
        let length = usize::try_from(bytes).expect("SQLite writes no negative amount");
        let data = std::slice::from_raw_parts(from.cast::<u8>(), length);
        let at = usize::try_from(offset).expect("SQLite writes at no negative offset");
        let (verdict, done) = ours.machine().write(ours.number, at, data);
        let written = match c_int::try_from(done) {
            Ok(done) if done > 0 => inner!(inner, xWrite, from, done, offset),
            _ => ffi::SQLITE_OK,
        };
        code(output(verdict, ffi::SQLITE_IOERR_WRITE).map(|()| written))
    }
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, bytes: i64) -> c_int {
    // SAFETY: the file is open.
    unsafe {
        let (ours, inner) = parts(file);
        if ours.number > 0 {
            let to = usize::try_from(bytes).expect("no file has a negative size");
            let verdict = ours.machine().truncate(ours.number, to);
            if let Err(code) = output(verdict, ffi::SQLITE_IOERR_TRUNCATE) {
                return code;
            }
        }
        inner!(inner, xTruncate, bytes)
    }
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, _flags: c_int) -> c_int {
    // SAFETY: the file is open. No real sync happens: the machine defines what is durable.
    unsafe {
        let (ours, inner) = parts(file);
        if ours.number > 0 {
            match (*ours.machine).sync(ours.number, &mut ours.reported) {
                Synced::Done => {}
                Synced::Failed => return ffi::SQLITE_IOERR_FSYNC,
                Synced::Forgotten(shows) => {
                    let bytes = c_int::try_from(shows.len()).expect("tests' files are small");
                    inner!(inner, xTruncate, i64::from(bytes));
                    inner!(inner, xWrite, shows.as_ptr().cast(), bytes, 0);
                    return ffi::SQLITE_IOERR_FSYNC;
                }
            }
            if std::mem::take(&mut ours.syncs_folder) {
                ours.machine().sync_folder();
            }
        }
        ffi::SQLITE_OK
    }
}

unsafe extern "C" fn file_size(file: *mut ffi::sqlite3_file, size: *mut i64) -> c_int {
    // SAFETY: the file is open.
    unsafe { inner!(parts(file).1, xFileSize, size) }
}

unsafe extern "C" fn lock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    // SAFETY: the file is open.
    unsafe {
        let (ours, inner) = parts(file);
        code(ours.ask(Kind::Lock, ffi::SQLITE_IOERR_LOCK).map(|()| inner!(inner, xLock, level)))
    }
}

unsafe extern "C" fn unlock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    // SAFETY: the file is open.
    unsafe { inner!(parts(file).1, xUnlock, level) }
}

unsafe extern "C" fn check_reserved_lock(file: *mut ffi::sqlite3_file, out: *mut c_int) -> c_int {
    // SAFETY: the file is open.
    unsafe { inner!(parts(file).1, xCheckReservedLock, out) }
}

unsafe extern "C" fn file_control(
    file: *mut ffi::sqlite3_file,
    op: c_int,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the file is open.
    unsafe { inner!(parts(file).1, xFileControl, op, argument) }
}

unsafe extern "C" fn sector_size(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: the file is open.
    unsafe { inner!(parts(file).1, xSectorSize) }
}

unsafe extern "C" fn device_characteristics(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: the file is open.
    unsafe { inner!(parts(file).1, xDeviceCharacteristics) }
}

unsafe extern "C" fn shm_map(
    file: *mut ffi::sqlite3_file,
    region: c_int,
    bytes: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> c_int {
    // SAFETY: the file is open.
    unsafe {
        let (ours, inner) = parts(file);
        // If it may not extend, the unix VFS returns a null pointer for a missing region.
        let mapped = inner!(inner, xShmMap, region, bytes, 0, out);
        if extend == 0 || mapped != ffi::SQLITE_OK || !(*out).is_null() {
            return mapped;
        }
        let longer = usize::try_from(bytes).expect("no region has a negative size");
        match ours.machine().extend(longer) {
            CallVerdict::Go => inner!(inner, xShmMap, region, bytes, extend, out),
            // The unix VFS returns the same code for any cause.
            _ => ffi::SQLITE_IOERR_SHMSIZE,
        }
    }
}

unsafe extern "C" fn shm_lock(
    file: *mut ffi::sqlite3_file,
    offset: c_int,
    count: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: the file is open.
    unsafe {
        let (ours, inner) = parts(file);
        let takes = flags & ffi::SQLITE_SHM_LOCK != 0;
        if takes && let Err(code) = ours.ask(Kind::Lock, ffi::SQLITE_IOERR_SHMLOCK) {
            return code;
        }
        inner!(inner, xShmLock, offset, count, flags)
    }
}

unsafe extern "C" fn shm_barrier(file: *mut ffi::sqlite3_file) {
    // SAFETY: the file is open.
    unsafe { inner!(parts(file).1, xShmBarrier) }
}

unsafe extern "C" fn shm_unmap(file: *mut ffi::sqlite3_file, delete: c_int) -> c_int {
    // SAFETY: the file is open.
    unsafe { inner!(parts(file).1, xShmUnmap, delete) }
}

/// Version 2: with shared memory, and without memory-mapped reads, which no call would show.
static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};
