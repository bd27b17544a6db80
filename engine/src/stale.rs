//! Subscriptions of one connection whose deltas cost too much: what is heard of them meanwhile, and the
//! reruns that are under way.

use std::collections::VecDeque;
use std::sync::Arc;

use abide_schema::{Refusal, Seq};
use tokio::task::JoinSet;

use crate::connection::Subscription;
use crate::engine::Engine;
use crate::hub::{SharedDelta, SubscriptionKey};
use crate::rerun::{Fresh, Rerun, Version};

/// What a frame said of one subscription.
pub(crate) type News = (Seq, Arc<SharedDelta>);

/// News that are kept of a subscription: with more, the rerun is as good.
const KEPT: usize = 256;

/// A subscription that waits for a rerun.
#[derive(Debug)]
pub(crate) struct Stale {
    rerun: Arc<Rerun>,
    /// What frames said since, in order.
    news: VecDeque<News>,
}

type Done = (SubscriptionKey, Result<Fresh, Refusal>);

/// The reruns that a connection waits for. They end with it.
#[derive(Debug, Default)]
pub(crate) struct Reruns {
    tasks: JoinSet<Done>,
    /// One that is done and was not yet taken.
    next: Option<Done>,
}

impl Reruns {
    /// Takes one that is done.
    pub(crate) fn done(&mut self) -> Option<Done> {
        self.next.take().or_else(|| self.tasks.try_join_next()?.ok())
    }

    /// Waits until one is done. Nothing is lost when the wait is given up.
    pub(crate) async fn any_done(&mut self) {
        while self.next.is_none() {
            match self.tasks.join_next().await {
                Some(done) => self.next = done.ok(),
                None => std::future::pending().await,
            }
        }
    }

    /// Hears what a frame says of a subscription that is stale, or is from now on.
    pub(crate) fn take_news(
        &mut self,
        engine: &Engine,
        key: SubscriptionKey,
        subscription: &mut Subscription,
        news: News,
    ) {
        let at = news.0;
        if let Some(stale) = &mut subscription.stale {
            if stale.news.len() >= KEPT {
                stale.news.clear();
                stale.news.push_back((at, SharedDelta::unknown()));
            } else {
                stale.news.push_back(news);
            }
            return;
        }
        let rerun = engine.inner.reruns.of(&subscription.binding);
        self.order(engine, key, &rerun, at, subscription.held.clone());
        subscription.stale = Some(Stale { rerun, news: VecDeque::from([news]) });
    }

    /// A rerun is done. Returns what was heard after it, if that is all known; otherwise the next rerun
    /// is under way.
    pub(crate) fn settle(
        &mut self,
        engine: &Engine,
        key: SubscriptionKey,
        subscription: &mut Subscription,
        version: &Arc<Version>,
    ) -> VecDeque<News> {
        subscription.held = Some(Arc::clone(version));
        let Some(mut stale) = subscription.stale.take() else { return VecDeque::new() };
        stale.news.retain(|(at, _)| *at > version.seq);
        let unknown = stale.news.iter().rev().find(|(_, delta)| delta.is_stale());
        let Some((at, _)) = unknown else { return stale.news };
        self.order(engine, key, &stale.rerun, *at, subscription.held.clone());
        subscription.stale = Some(stale);
        VecDeque::new()
    }

    fn order(
        &mut self,
        engine: &Engine,
        key: SubscriptionKey,
        rerun: &Arc<Rerun>,
        at: Seq,
        held: Option<Arc<Version>>,
    ) {
        // Nobody who only waits keeps an engine open.
        let (engine, rerun) = (Arc::downgrade(&engine.inner), Arc::clone(rerun));
        self.tasks.spawn(async move { (key, rerun.advance(&engine, at, held).await) });
    }
}
