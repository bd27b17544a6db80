//! An engine with existing rows, to run inputs on. All inputs of a process share it; it is
//! recreated when it has grown.

use std::cell::RefCell;
use std::path::Path;

use abide_engine::{Config, Engine};
use abide_sim::keep;
use abide_sim::rig::folder;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// After this many inputs it is recreated, so that rows of one input do not affect all later ones.
const INPUTS: u32 = 2_000;

/// See the [module](self).
pub(crate) struct FuzzEngine {
    pub(crate) runtime: Runtime,
    pub(crate) engine: Engine,
    used: u32,
    _folder: TempDir,
}

/// Writes the files of a killed process that has run every reducer into a folder.
pub(crate) fn write_played_files(into: &Path) {
    let archive = folder();
    keep::keep(archive.path()).expect("the script runs");
    keep::unpack(archive.path(), into).expect("the archive unpacks");
}

impl FuzzEngine {
    fn new() -> FuzzEngine {
        let folder = folder();
        write_played_files(folder.path());
        let config = Config::new(abide_reducers::modules());
        let engine = Engine::open(folder.path().join("abide.db"), config);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        FuzzEngine {
            runtime: runtime.expect("a runtime can be had"),
            engine: engine.expect("the file opens"),
            used: 0,
            _folder: folder,
        }
    }

    /// Runs an input on it.
    pub(crate) fn with<T>(does: impl FnOnce(&FuzzEngine) -> T) -> T {
        thread_local! {
            static BENCH: RefCell<Option<FuzzEngine>> = const { RefCell::new(None) };
        }
        BENCH.with_borrow_mut(|bench| {
            if bench.as_ref().is_some_and(|bench| bench.used >= INPUTS)
                && let Some(old) = bench.take()
            {
                old.engine.close();
            }
            let bench = bench.get_or_insert_with(FuzzEngine::new);
            bench.used += 1;
            does(bench)
        })
    }
}
