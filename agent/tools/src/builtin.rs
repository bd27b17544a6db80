//! The tools that come with Abide: files and programs of a workspace, web pages, web searches and package registries.

mod browser;
mod call_files;
mod edit;
mod execute;
mod file_states;
mod find;
mod grep;
mod html;
mod list;
mod packages;
mod read;
mod registration;
mod search;
mod touched;
mod web;

pub use browser::BrowserConfig;
pub use execute::ExecuteConfig;
pub use packages::PackagesConfig;
pub use registration::{BuiltinError, BuiltinToolsConfig, add_builtin_tools};
pub use search::{SearchConfig, SearchProvider};
