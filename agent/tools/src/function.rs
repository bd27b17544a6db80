//! A Rust function as a tool; the schema is derived from its parameter type.
//!
//! A panic becomes an outcome. A function that blocks its thread cannot be stopped: timeout and cancellation take
//! effect only when it awaits something.

use std::any::Any;
use std::fmt::Display;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use abide_client::rows::Effect;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::outcome::{Failure, ToolOutcome};
use crate::tool::{Invocation, Tool, ToolContext, ToolDeclaration};

/// Returns what an interrupted call has changed, by the id of the call.
type FindChanges = dyn Fn(String) -> Option<Value> + Send + Sync;

type Body = dyn Fn(Invocation) -> BoxFuture<'static, ToolOutcome> + Send + Sync;

/// A Rust function as a tool.
pub struct Function {
    declaration: ToolDeclaration,
    body: Arc<Body>,
    /// See [`Tool::interrupted`]. It may block.
    find_changes: Option<Arc<FindChanges>>,
}

impl Function {
    /// Creates a function with typed arguments. They are deserialized after validation.
    #[must_use]
    pub fn new<A, F, R>(name: &str, description: &str, function: F) -> Function
    where
        A: DeserializeOwned + JsonSchema,
        F: Fn(A, ToolContext) -> R + Send + Sync + 'static,
        R: Future<Output: IntoOutcome> + Send + 'static,
    {
        let parameters = schemars::schema_for!(A).to_value();
        let declaration = ToolDeclaration::new(name, description, parameters);
        Function::untyped(declaration, move |invocation| {
            // The function is called outside of the future, so that the future need not borrow it.
            let work = serde_json::from_value::<A>(invocation.arguments)
                .map(|arguments| function(arguments, invocation.context));
            async move {
                match work {
                    Ok(work) => work.await.into_outcome(),
                    Err(why) => ToolOutcome::failed(
                        Failure::Arguments,
                        format!("cannot deserialize the arguments: {why}"),
                    ),
                }
            }
        })
    }

    /// Creates a function that gets the whole [`Invocation`]: the arguments as JSON, and also the id of the call and
    /// its cancellation token. Its schema is not derived, so it needs a declaration.
    #[must_use]
    pub fn untyped<F, R>(declaration: ToolDeclaration, function: F) -> Function
    where
        F: Fn(Invocation) -> R + Send + Sync + 'static,
        R: Future<Output: IntoOutcome> + Send + 'static,
    {
        let body = move |invocation| {
            let work = function(invocation);
            async move { work.await.into_outcome() }.boxed()
        };
        Function { declaration, body: Arc::new(body), find_changes: None }
    }

    /// Sets the function that answers [`Tool::interrupted`] for the id of a call.
    pub(crate) fn find_changes_with(
        self,
        find: impl Fn(String) -> Option<Value> + Send + Sync + 'static,
    ) -> Function {
        Function { find_changes: Some(Arc::new(find)), ..self }
    }

    /// Returns its name.
    pub(crate) fn name(&self) -> &str {
        &self.declaration.name
    }

    /// Sets the effect; the default is [`Effect::AtMostOnce`]. A call of an [`Effect::ReadOnly`] function can run
    /// before it is durable, so do not use this effect for a function that sends the id of its call to another system.
    #[must_use]
    pub fn effect(mut self, effect: Effect) -> Function {
        self.declaration.effect = effect;
        self
    }

    /// Requires approval of each call.
    #[must_use]
    pub fn needs_approval(mut self) -> Function {
        self.declaration.needs_approval = true;
        self
    }

    /// Sets the timeout; the default is [`DEFAULT_TIMEOUT`](crate::DEFAULT_TIMEOUT).
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

    fn is_local(&self) -> bool {
        true
    }

    fn interrupted(&self, call_id: String) -> BoxFuture<'static, Option<Value>> {
        let find = self.find_changes.clone();
        async move {
            let find = find?;
            tokio::task::spawn_blocking(move || find(call_id)).await.ok().flatten()
        }
        .boxed()
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'static, ToolOutcome> {
        let name = self.declaration.name.clone();
        let timeout = self.declaration.timeout;
        let body = Arc::clone(&self.body);
        async move {
            let cancel = invocation.cancel.clone();
            // Not only the future may panic, but also the function that creates it.
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

/// Returns the outcome of a panic. The message is only logged, because it may contain data that the model must not see.
fn panicked(name: &str, panic: &(dyn Any + Send)) -> ToolOutcome {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(
        name: "tool_panicked",
        tool = name,
        panic = text.unwrap_or("not text"),
        "a tool panicked"
    );
    ToolOutcome::failed(Failure::Panicked, format!("{name} panicked; this is a bug in the tool"))
}

/// Returns the outcome of a timeout.
pub(crate) fn timed_out(name: &str, timeout: Duration) -> ToolOutcome {
    let text = format!("{name} timed out after {} s", timeout.as_secs_f64());
    ToolOutcome::failed(Failure::TimedOut, text)
}

/// The return type of a function.
pub trait IntoOutcome {
    /// Converts the value to an outcome.
    fn into_outcome(self) -> ToolOutcome;
}

impl IntoOutcome for ToolOutcome {
    fn into_outcome(self) -> ToolOutcome {
        self
    }
}

/// Any serializable value, or an error for the model.
impl<T: Serialize, E: Display> IntoOutcome for Result<T, E> {
    fn into_outcome(self) -> ToolOutcome {
        match self.map(|value| serde_json::to_value(value)) {
            Ok(Ok(value)) => ToolOutcome::json(value),
            Ok(Err(why)) => ToolOutcome::failed(
                Failure::Tool,
                format!("the tool ran, but its result cannot be converted to JSON: {why}"),
            ),
            Err(why) => ToolOutcome::failed(Failure::Tool, why.to_string()),
        }
    }
}
