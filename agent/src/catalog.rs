//! All agents of a runtime: the folder that defines them, what it needs, the native ones, and those received over the
//! network.
//!
//! `agents` the catalog · `cycles` delegation in a cycle · `folder_check` what a folder lacks · `folder_texts` the
//! files of a folder · `mlflow` prompts of MLflow · `native` the native agents · `project` `abide.yaml` and the folder
//! · `project_reload` the same while a runtime uses it · `shared_setting` what it replaces · `revision` definitions
//! in rows · `stored_prompts` prompts of the database · `submitted` definitions from the network · `trusted_programs`
//! programs and remote agents that may be used.

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
