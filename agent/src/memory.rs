//! The memory of an agent: facts that outlive a session.
//!
//! `block` facts as text for a model · `facts` facts are read for each message of the user · `space` where the facts are ·
//! `tools` the tools that change and search them.

pub(crate) mod block;
pub(crate) mod facts;
pub(crate) mod space;
pub(crate) mod tools;
