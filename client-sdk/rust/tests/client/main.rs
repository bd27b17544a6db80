//! The SDK as programs use it: the same scenarios with an embedded engine and with a real server, and
//! failures that only a server can cause.

mod authority;
mod restart;
mod same;
mod steps;
mod world;
