//! A Rust function as a tool: its parameters are a type, from which the schema is derived.
//!
//! A panic in it is an outcome. What cannot be helped is a function that blocks its thread: neither its timeout nor
//! a cancellation reaches it before it waits for something.

use std::any::Any;
use std::fmt::Display;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use abide_client::Effect;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::outcome::{Failure, ToolOutcome};
use crate::tool::{Invocation, Tool, ToolContext, ToolDeclaration};

type Body = dyn Fn(Invocation) -> BoxFuture<'static, ToolOutcome> + Send + Sync;

/// A Rust function as a tool.
pub struct Function {
    declaration: ToolDeclaration,
    body: Arc<Body>,
}

impl Function {
    /// A function of typed arguments. They are read by serde from what has been held to their schema.
    #[must_use]
    pub fn new<A, F, R>(name: &str, description: &str, function: F) -> Function
    where
        A: DeserializeOwned + JsonSchema,
        F: Fn(A, ToolContext) -> R + Send + Sync + 'static,
        R: Future<Output: Returned> + Send + 'static,
    {
        let parameters = schemars::schema_for!(A).to_value();
        let declaration = ToolDeclaration::new(name, description, parameters);
        Function::of(declaration, move |invocation| {
            let read = serde_json::from_value::<A>(invocation.arguments);
            // Called here and not in the future, so that the future need not borrow the function.
            let answer = read.map(|arguments| function(arguments, invocation.context));
            async move {
                match answer {
                    Ok(answer) => answer.await.into_outcome(),
                    Err(why) => ToolOutcome::failed(
                        Failure::Arguments,
                        format!("the arguments cannot be read: {why}"),
                    ),
                }
            }
        })
    }

    /// A function of whatever it is called with, declared by hand: it sees the call's id and whether it is
    /// cancelled.
    #[must_use]
    pub fn of<F, R>(declaration: ToolDeclaration, function: F) -> Function
    where
        F: Fn(Invocation) -> R + Send + Sync + 'static,
        R: Future<Output: Returned> + Send + 'static,
    {
        let body = move |invocation| function(invocation).map(Returned::into_outcome).boxed();
        Function { declaration, body: Arc::new(body) }
    }

    /// Says what running it twice means; without it, that it must not.
    #[must_use]
    pub fn effect(mut self, effect: Effect) -> Function {
        self.declaration.effect = effect;
        self
    }

    /// Has somebody approve each call.
    #[must_use]
    pub fn needs_approval(mut self) -> Function {
        self.declaration.needs_approval = true;
        self
    }

    /// Gives it so long, instead of [`DEFAULT_TIMEOUT`](crate::DEFAULT_TIMEOUT).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Function {
        self.declaration.timeout = timeout;
        self
    }
}

impl Tool for Function {
    fn declaration(&self) -> &ToolDeclaration {
        &self.declaration
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'static, ToolOutcome> {
        let name = self.declaration.name.clone();
        let timeout = self.declaration.timeout;
        let body = Arc::clone(&self.body);
        async move {
            let cancel = invocation.cancel.clone();
            // The call of the function itself may panic, not only the future that it gives.
            let work = AssertUnwindSafe(async move { body(invocation).await }).catch_unwind();
            tokio::select! {
                biased;
                () = cancel.cancelled() => {
                    ToolOutcome::failed(Failure::Cancelled, format!("{name} was cancelled"))
                }
                done = tokio::time::timeout(timeout, work) => match done {
                    Ok(Ok(outcome)) => outcome,
                    Ok(Err(panic)) => panicked(&name, panic.as_ref()),
                    Err(_) => timed_out(&name, timeout),
                },
            }
        }
        .boxed()
    }
}

/// What a panic comes to. What it says is for who reads the log: it may quote what the model must not see.
fn panicked(name: &str, panic: &(dyn Any + Send)) -> ToolOutcome {
    let text = panic.downcast_ref::<&str>().copied();
    let said = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(tool = name, panic = said.unwrap_or("not text"), "a tool panicked");
    ToolOutcome::failed(Failure::Panicked, format!("{name} broke down, which is a defect of it"))
}

/// What a run comes to that was not done in time.
pub(crate) fn timed_out(name: &str, timeout: Duration) -> ToolOutcome {
    let text = format!("{name} was not done within {} s", timeout.as_secs_f64());
    ToolOutcome::failed(Failure::TimedOut, text)
}

/// What a function may return.
pub trait Returned {
    /// As what came of the call.
    fn into_outcome(self) -> ToolOutcome;
}

impl Returned for ToolOutcome {
    fn into_outcome(self) -> ToolOutcome {
        self
    }
}

/// Any value that becomes JSON, or an error that the model is told.
impl<T: Serialize, E: Display> Returned for Result<T, E> {
    fn into_outcome(self) -> ToolOutcome {
        match self.map(|value| serde_json::to_value(value)) {
            Ok(Ok(value)) => ToolOutcome::json(value),
            Ok(Err(why)) => ToolOutcome::failed(
                Failure::Tool,
                format!("it ran, but what it gave cannot be told as JSON: {why}"),
            ),
            Err(why) => ToolOutcome::failed(Failure::Tool, why.to_string()),
        }
    }
}
