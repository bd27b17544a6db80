//! The stdin and the stdout of a program.

use serde::{Deserialize, Serialize};

/// The input on stdin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stdin {
    /// The arguments as JSON, on one line.
    #[default]
    Arguments,
    /// Nothing.
    Empty,
}

/// The format of stdout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// Text.
    #[default]
    Text,
    /// One JSON value; other output is an error.
    Json,
}
