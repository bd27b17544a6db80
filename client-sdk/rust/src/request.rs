//! Reducer calls, single and in batches.

use std::fmt;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::pin::Pin;
use std::time::Duration;

use abide_schema::Seq;
use abide_schema::reducer::Arguments;
use abide_schema::wire::{BatchCall, CallResult};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value as JsonValue};
use uuid::Uuid;

use crate::backend::{AppliedCall, BackendReply, BackendRequest};
use crate::{Abide, Error};

impl Abide {
    /// Returns a call of a reducer, which is sent when it is awaited. `#[reducer]` generates the type of its arguments: `abide.call(AddNote { session_id, body })`
    /// calls `add_note`.
    pub fn call<A: Arguments>(&self, arguments: A) -> Request<A::Result> {
        Request::new(self, Call::from(arguments))
    }

    /// Returns a call of a reducer by its name, for programs that know it only at runtime. The arguments must serialise to an
    /// object; the result is JSON unless [`Request::returning`] selects another type.
    pub fn call_by_name(&self, reducer: &str, arguments: impl Serialize) -> Request {
        Request::new(self, Call::new(reducer, arguments))
    }

    /// Returns a batch of calls, which take effect in one transaction, all or nothing.
    pub fn batch<C: Into<Call>>(&self, calls: impl IntoIterator<Item = C>) -> Batch {
        Batch::new(self, calls.into_iter().map(Into::into).collect())
    }
}

/// The future of an awaited builder.
pub type RequestFuture<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

/// The reply to a call: what the reducer returned, and the call's position in the log.
///
/// ```
/// use abide_client::Abide;
/// use abide_client::arguments::CreateSession;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let abide = Abide::open(folder.path().join("agents.db"))?;
/// let committed = abide.call(CreateSession::new("support")).await?;
/// assert_eq!(committed.value.agent, "support");
/// assert!(!committed.duplicate);
///
/// let session = abide.call(CreateSession::new("support")).await?.into_inner();
/// assert_ne!(session.id, committed.value.id);
/// # abide.close().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed<T> {
    /// The call's position in the log, or that of the original call if this one is a duplicate.
    pub seq: Seq,
    /// `true` if an earlier call with the same request id had already taken effect.
    pub duplicate: bool,
    /// What the reducer returned.
    pub value: T,
}

impl<T> Committed<T> {
    /// Returns what the reducer returned, without the position.
    #[must_use]
    pub fn into_inner(self) -> T {
        self.value
    }
}

/// A call that is sent when it is awaited.
///
/// It has a request id, generated once and used for every attempt: however often the connection is lost
/// and the call is sent again, it takes effect **at most once**. It is retried until it is answered or its
/// deadline has passed; temporary refusals are retried after a pause.
///
/// `T` is what the reducer returns.
#[must_use = "a call is sent when it is awaited"]
pub struct Request<T = JsonValue> {
    abide: Abide,
    call: Call,
    request_id: Option<String>,
    deadline: Option<Duration>,
    types: PhantomData<fn() -> T>,
}

impl<T> Request<T> {
    pub(crate) fn new(abide: &Abide, call: Call) -> Request<T> {
        Request { abide: abide.clone(), call, request_id: None, deadline: None, types: PhantomData }
    }

    /// Sets the request id: a later call with the same id, even from another process, gets the stored
    /// reply. Default: a new UUID (version 7) for each request.
    pub fn request_id(mut self, id: impl Into<String>) -> Self {
        self.request_id = Some(id.into());
        self
    }

    /// Sets how long to retry, instead of the client's default.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Adds or replaces an argument.
    pub fn arg(mut self, name: &str, value: impl Serialize) -> Self {
        self.call = self.call.arg(name, value);
        self
    }

    /// Returns the same call, with its result decoded as another type.
    pub fn returning<U>(self) -> Request<U> {
        let Request { abide, call, request_id, deadline, .. } = self;
        Request { abide, call, request_id, deadline, types: PhantomData }
    }
}

impl<T: DeserializeOwned> Request<T> {
    /// Sends it. Awaiting the request does the same.
    ///
    /// # Errors
    /// [`Error::Refused`] if the reducer refuses: nothing was written. [`Error::TimedOut`] if there was no answer within
    /// the deadline: it is unknown whether the call took effect. [`Error::Encode`] if the arguments have no form in JSON,
    /// and [`Error::Decode`] if the result is not a `T`.
    pub async fn send(self) -> Result<Committed<T>, Error> {
        let BatchCall { reducer, args } = self.call.ready()?;
        let what = format!("the result of {reducer}");
        let request_id = self.request_id.unwrap_or_else(new_request_id);
        let ask = BackendRequest::Call { reducer, args, request_id };
        match self.abide.ask(ask, self.deadline).await? {
            BackendReply::Called { seq, duplicate, result } => {
                let value = result.decode().map_err(|why| Error::decode(what, why))?;
                Ok(Committed { seq, duplicate, value })
            }
            other => Err(unexpected_reply(&other)),
        }
    }
}

impl<T: DeserializeOwned + 'static> IntoFuture for Request<T> {
    type Output = Result<Committed<T>, Error>;
    type IntoFuture = RequestFuture<Committed<T>>;

    fn into_future(self) -> RequestFuture<Committed<T>> {
        Box::pin(self.send())
    }
}

impl<T> fmt::Debug for Request<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Request").field(&self.call).finish()
    }
}

/// One call of a batch. The arguments of any reducer convert to it.
#[derive(Clone, Debug)]
pub struct Call {
    reducer: String,
    args: Result<JsonValue, Error>,
}

impl Call {
    /// Returns a call of a reducer by its name; the arguments must serialise to an object.
    #[must_use]
    pub fn new(reducer: impl Into<String>, args: impl Serialize) -> Call {
        let reducer = reducer.into();
        let args = serde_json::to_value(args)
            .map_err(|why| Error::encode(format!("the arguments of {reducer}"), why));
        Call { reducer, args }
    }

    /// Adds or replaces an argument.
    #[must_use]
    pub fn arg(mut self, name: &str, value: impl Serialize) -> Call {
        let value = serde_json::to_value(value)
            .map_err(|why| Error::encode(format!("the argument {name} of {}", self.reducer), why));
        self.args = self.args.and_then(|args| {
            let mut args = match args {
                JsonValue::Null => Map::new(),
                JsonValue::Object(args) => args,
                _ => {
                    let what = format!("the arguments of {}", self.reducer);
                    return Err(Error::encode(what, "they are not a JSON object"));
                }
            };
            args.insert(name.to_owned(), value?);
            Ok(JsonValue::Object(args))
        });
        self
    }

    fn ready(self) -> Result<BatchCall, Error> {
        Ok(BatchCall { reducer: self.reducer, args: self.args? })
    }
}

/// A call of the reducer that the type of the arguments names.
impl<A: Arguments> From<A> for Call {
    fn from(arguments: A) -> Call {
        Call::new(A::REDUCER, arguments)
    }
}

/// Calls in one transaction, all or nothing; sent when it is awaited, like a [`Request`].
#[must_use = "a batch is sent when it is awaited"]
#[derive(Debug)]
pub struct Batch {
    abide: Abide,
    calls: Vec<Call>,
    request_id: Option<String>,
    deadline: Option<Duration>,
}

impl Batch {
    pub(crate) fn new(abide: &Abide, calls: Vec<Call>) -> Batch {
        Batch { abide: abide.clone(), calls, request_id: None, deadline: None }
    }

    /// Sets the request id of the whole batch; see [`Request::request_id`].
    pub fn request_id(mut self, id: impl Into<String>) -> Self {
        self.request_id = Some(id.into());
        self
    }

    /// Sets how long to retry, instead of the client's default.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sends it. Awaiting the batch does the same.
    ///
    /// # Errors
    /// Those of [`Request::send`]. [`Error::Refused`] names the first refused call; nothing of the batch was written.
    pub async fn send(self) -> Result<Committed<Vec<CallResult>>, Error> {
        let done =
            self.ask(|calls, request_id| BackendRequest::Batch { calls, request_id }).await?;
        let Committed { seq, duplicate, value } = done;
        let results = value.into_iter().map(|call| {
            let result = call.decode()?;
            Ok(CallResult { seq: call.seq, result })
        });
        Ok(Committed { seq, duplicate, value: results.collect::<Result<_, Error>>()? })
    }

    /// Sends it like [`Batch::send`], and returns before it is durable if the engine is in this process: what depends on it
    /// can be prepared while the disk is written. Until [`Abide::until_durable`] has returned for its seq, a crash can undo
    /// it: do not show it, and do not start work that depends on it and has an effect. [`AppliedCall::decode`] decodes one result.
    ///
    /// Without [`Batch::request_id`], an engine in this process stores no request id: after [`Error::TimedOut`], read what was
    /// written before you repeat the batch.
    ///
    /// # Errors
    /// Those of [`Batch::send`].
    pub async fn apply(self) -> Result<Committed<Vec<AppliedCall>>, Error> {
        let generated = self.request_id.is_none();
        self.ask(|calls, request_id| BackendRequest::Apply { calls, request_id, generated }).await
    }

    async fn ask(
        self,
        request: impl FnOnce(Vec<BatchCall>, String) -> BackendRequest,
    ) -> Result<Committed<Vec<AppliedCall>>, Error> {
        let calls = self.calls.into_iter().map(Call::ready).collect::<Result<Vec<_>, _>>()?;
        let request_id = self.request_id.unwrap_or_else(new_request_id);
        match self.abide.ask(request(calls, request_id), self.deadline).await? {
            BackendReply::Batch { seq, duplicate, results } => {
                Ok(Committed { seq, duplicate, value: results })
            }
            other => Err(unexpected_reply(&other)),
        }
    }
}

impl IntoFuture for Batch {
    type Output = Result<Committed<Vec<CallResult>>, Error>;
    type IntoFuture = RequestFuture<Committed<Vec<CallResult>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

fn new_request_id() -> String {
    Uuid::now_v7().to_string()
}

pub(crate) fn unexpected_reply(reply: &BackendReply) -> Error {
    let what = match reply {
        BackendReply::Called { .. } => "a call's",
        BackendReply::Batch { .. } => "a batch's",
        BackendReply::Rows { .. } => "a query's",
        BackendReply::Explained(_) => "an explanation's",
    };
    Error::Protocol { why: format!("unexpected reply: {what}") }
}
