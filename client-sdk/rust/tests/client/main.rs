//! The SDK as programs use it: the same stories over an engine in this process and over a real
//! server, and what only a server can do to its clients.

mod authority;
#[expect(unreachable_pub, reason = "the page shows the file as a program has it")]
mod notes;
mod own_module;
mod restart;
mod same;
mod world;
