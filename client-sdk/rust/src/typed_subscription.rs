//! Subscriptions whose rows are decoded as a type.

use std::fmt;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use abide_schema::Seq;
use futures_util::Stream;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::query::Position;
use crate::request::RequestFuture;
use crate::{Abide, Error, Subscribe, Subscription, Update};

impl Abide {
    /// Returns a subscription to a query, like [`Abide::subscribe`], whose rows are decoded as a type: structs by column
    /// name, tuples by position, plain types for a single column.
    ///
    /// ```
    /// use abide_client::Abide;
    /// use abide_client::arguments::CreateSession;
    /// use abide_client::rows::Session;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("agents.db");
    /// let abide = Abide::open(path)?;
    /// abide.call(CreateSession::new("support")).await?;
    ///
    /// let mut sessions = abide.subscribe_as::<Session>("SELECT * FROM sessions").await?;
    /// while let Some(update) = sessions.try_next().await? {
    ///     for session in update.inserts {
    ///         println!("{} has the new session {}", session.agent, session.id);
    ///     }
    /// #   break;
    /// }
    /// assert_eq!(sessions.rows()?[0].agent, "support");
    /// # abide.close().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn subscribe_as<T: DeserializeOwned>(&self, sql: impl Into<String>) -> SubscribeAs<T> {
        SubscribeAs { subscribe: self.subscribe(sql), types: PhantomData }
    }
}

/// A subscription with rows of a type, which begins when it is awaited.
#[must_use = "a subscription begins when it is awaited"]
pub struct SubscribeAs<T> {
    subscribe: Subscribe,
    types: PhantomData<fn() -> T>,
}

impl<T> SubscribeAs<T> {
    /// Sets the value of `:name` in the statement; see [`Query::param`](crate::Query::param).
    pub fn param(self, name: &str, value: impl Serialize) -> Self {
        SubscribeAs { subscribe: self.subscribe.param(name, value), ..self }
    }

    /// Receives only the changes after this seq; see [`Subscribe::after`].
    pub fn after(self, seq: impl Into<Position>) -> Self {
        SubscribeAs { subscribe: self.subscribe.after(seq), ..self }
    }

    /// Starts with the result as of this seq; see [`Subscribe::as_of`].
    pub fn as_of(self, seq: impl Into<Position>) -> Self {
        SubscribeAs { subscribe: self.subscribe.as_of(seq), ..self }
    }

    /// Verifies the rows against the server's checksum after each change; see [`Subscribe::checksum`].
    pub fn checksum(self) -> Self {
        SubscribeAs { subscribe: self.subscribe.checksum(), ..self }
    }

    /// Starts it. Awaiting does the same. When this returns, [`TypedSubscription::rows`] returns the result.
    ///
    /// # Errors
    /// Those of [`Subscribe::start`].
    pub async fn start(self) -> Result<TypedSubscription<T>, Error> {
        let subscription = self.subscribe.start().await?;
        Ok(TypedSubscription { subscription, types: PhantomData })
    }
}

impl<T: 'static> IntoFuture for SubscribeAs<T> {
    type Output = Result<TypedSubscription<T>, Error>;
    type IntoFuture = RequestFuture<TypedSubscription<T>>;

    fn into_future(self) -> RequestFuture<TypedSubscription<T>> {
        Box::pin(self.start())
    }
}

impl<T> fmt::Debug for SubscribeAs<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SubscribeAs").field(&self.subscribe).finish()
    }
}

/// A query result and its changes, with rows of a type: a [`Stream`] of [`TypedUpdate`].
///
/// It has the guarantees of a [`Subscription`]. An update whose rows do not match the type is the item
/// [`Error::Decode`]; the stream goes on with the next update. After any other error it ends.
pub struct TypedSubscription<T> {
    subscription: Subscription,
    types: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> TypedSubscription<T> {
    /// Waits for the next update: the next item of the [`Stream`]. Cancelling the wait loses nothing.
    ///
    /// # Errors
    /// [`Error::Decode`] if a row does not match the type; otherwise those of [`Subscription::next`].
    pub async fn next(&mut self) -> Option<Result<TypedUpdate<T>, Error>> {
        let update = self.subscription.next().await?;
        Some(update.and_then(TypedUpdate::from_untyped))
    }

    /// Waits for the next update, like [`next`](TypedSubscription::next), in the form that suits the operator `?`.
    ///
    /// # Errors
    /// Those of [`next`](TypedSubscription::next).
    pub async fn try_next(&mut self) -> Result<Option<TypedUpdate<T>>, Error> {
        self.next().await.transpose()
    }

    /// Returns the result as of the last update, in the query's order; without ORDER BY, in the order of its key.
    ///
    /// # Errors
    /// [`Error::Decode`] if a row does not match the type.
    pub fn rows(&self) -> Result<Vec<T>, Error> {
        self.subscription.typed_rows()
    }
}

impl<T> TypedSubscription<T> {
    /// Returns the seq up to which all changes are applied; see [`Subscription::seq`].
    #[must_use]
    pub fn seq(&self) -> Seq {
        self.subscription.seq()
    }

    /// Returns the subscription without its type: for its columns, its key and its plan.
    #[must_use]
    pub fn as_untyped(&self) -> &Subscription {
        &self.subscription
    }

    /// Returns the subscription without its type, to continue with it.
    #[must_use]
    pub fn into_untyped(self) -> Subscription {
        self.subscription
    }
}

impl<T: DeserializeOwned> Stream for TypedSubscription<T> {
    type Item = Result<TypedUpdate<T>, Error>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<TypedUpdate<T>, Error>>> {
        let update = ready!(Pin::new(&mut self.subscription).poll_next(context));
        Poll::Ready(update.map(|update| update.and_then(TypedUpdate::from_untyped)))
    }
}

impl<T> fmt::Debug for TypedSubscription<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TypedSubscription").field(&self.subscription).finish()
    }
}

/// A change of the result of a [`TypedSubscription`]. The previous result, without the deletes, with the inserts, and
/// with rows replaced by updates of the same key, is the new result.
#[derive(Clone, Debug)]
pub struct TypedUpdate<T> {
    /// The seq up to which the previous result was current.
    pub from: Seq,
    /// The seq of the new result.
    pub seq: Seq,
    /// `true` if the inserts are the whole result; see [`Update::reset`].
    pub reset: bool,
    /// `true` if the server has another history than before; see [`Update::history_changed`].
    pub history_changed: bool,
    /// The inserted rows.
    pub inserts: Vec<T>,
    /// The new versions of updated rows.
    pub updates: Vec<T>,
    untyped: Update,
}

impl<T: DeserializeOwned> TypedUpdate<T> {
    fn from_untyped(untyped: Update) -> Result<TypedUpdate<T>, Error> {
        Ok(TypedUpdate {
            from: untyped.from,
            seq: untyped.seq,
            reset: untyped.reset,
            history_changed: untyped.history_changed,
            inserts: untyped.inserts()?,
            updates: untyped.updates()?,
            untyped,
        })
    }
}

impl<T> TypedUpdate<T> {
    /// Returns the keys of deleted rows, decoded as a type; see [`Update::deletes`].
    ///
    /// # Errors
    /// [`Error::Decode`] if a key does not match the type.
    pub fn deletes<K: DeserializeOwned>(&self) -> Result<Vec<K>, Error> {
        self.untyped.deletes()
    }

    /// Returns the update without its type: for the cells and positions of its rows.
    #[must_use]
    pub fn as_untyped(&self) -> &Update {
        &self.untyped
    }
}
