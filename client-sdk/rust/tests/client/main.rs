//! The SDK as programs use it: the same scenarios with an embedded engine and with a real server, and
//! failures that only a server can cause.

mod authority;
#[expect(unreachable_pub, reason = "the page shows the file as a program has it")]
mod notes;
mod own_module;
mod restart;
mod same;
mod world;
