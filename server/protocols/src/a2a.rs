//! A2A: agents with `a2a_exposed`, for agents elsewhere. A context is a session, a task is a run, and a message to a task
//! that needs input decides on the calls that wait for an approval.
//!
//! [`operations`] are the same in all bindings; [`rpc`], [`http`] (with [`paths`]) and [`grpc`] are JSON-RPC,
//! HTTP+JSON and gRPC, and [`binding`] is what they share. [`legacy`] and [`legacy_http`] are the forms of version
//! 0.3. The messages of clients are stored in a collection of their scope ([`records`]), in the transaction that they
//! cause. [`task_list`] lists tasks. [`push`] configures push notifications, and [`delivery`] sends them.

mod binding;
mod card;
mod delivery;
mod error;
mod grpc;
mod http;
mod legacy;
mod legacy_http;
mod message;
mod operations;
mod params;
mod paths;
mod proto;
mod push;
mod push_operations;
mod records;
mod rpc;
mod task;
mod task_list;

pub(crate) use card::{card, legacy_card, list, signing_keys};
pub(crate) use delivery::run as deliver;
pub(crate) use grpc::call as grpc_call;
pub(crate) use http::call as http_call;
pub(crate) use rpc::call as rpc_call;
