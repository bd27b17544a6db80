//! An engine with existing rows, to run inputs on. All inputs of a process share it; it is
//! recreated when it has grown.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

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

/// The fixture folder of a file of format 1, as a killed process left it.
pub(crate) fn kept_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/formats/1")
}

impl FuzzEngine {
    fn new() -> FuzzEngine {
        let folder = folder();
        keep::unpack(&kept_folder(), folder.path()).expect("the fixture unpacks");
        let config = Config::new(abide_reducers::modules());
        let engine = Engine::open(folder.path().join("abide.db"), config);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        FuzzEngine {
            runtime: runtime.expect("a runtime can be had"),
            engine: engine.expect("the fixture opens"),
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
