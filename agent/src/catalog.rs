//! All agents of a runtime: the folder that defines them, what it needs, the native ones, and those received over the
//! network.
//!
//! | file | what it does |
//! |---|---|
//! | `project`, `project_reload`, `shared_setting` | `abide.yaml` and its folder; the same while a runtime uses it; what a reload replaces |
//! | `agents`, `native` | the catalog: the definitions of the folder, and the native ones |
//! | `submitted` | definitions from the network |
//! | `revision` | definitions in rows, which runs use |
//! | `folder_check`, `cycles` | what a folder lacks; delegation in a cycle |
//! | `stored_prompts`, `mlflow` | prompts of the database, and of MLflow |
//! | `trusted_programs` | which programs and remote agents runs may use |

pub(crate) mod agents;
pub(crate) mod cycles;
pub(crate) mod folder_check;
pub(crate) mod mlflow;
pub(crate) mod native;
pub(crate) mod project;
pub(crate) mod project_reload;
pub(crate) mod revision;
pub(crate) mod shared_setting;
pub(crate) mod stored_prompts;
pub(crate) mod submitted;
pub(crate) mod trusted_programs;
