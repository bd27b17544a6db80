//! The faults and their times, determined by the seed.

use std::fmt;
use std::time::{Duration, Instant};

use abide_sim::random::Random;

use super::disk::SmallVolume;
use super::ledger::Ledger;
use super::proxy::Proxy;
use crate::CheckResult;
use crate::figures::count;
use crate::http::Http;
use crate::pace::pause;
use crate::server::Server;

/// If no call is acknowledged for this long without a fault, the server hangs.
const STANDSTILL: Duration = Duration::from_secs(30);

/// The faults so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FaultCounts {
    pub(crate) kills: u64,
    pub(crate) stops: u64,
    /// `None` if the disk cannot be filled.
    pub(crate) full: Option<u64>,
    pub(crate) outages: u64,
    /// How often the server refused to continue and was restarted, as a supervisor does.
    pub(crate) poisoned: u64,
    /// The slowest start in milliseconds.
    pub(crate) slowest_ms: u64,
}

impl fmt::Display for FaultCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FaultCounts { kills, stops, outages, poisoned, slowest_ms, .. } = self;
        let full = self.full.map_or("skipped".to_owned(), count);
        write!(
            f,
            "SIGKILL {kills}, SIGTERM {stops}, disk full {full}, network down {outages}, restarted \
             because it was poisoned {poisoned}; slowest start {slowest_ms} ms"
        )
    }
}

/// See the [module](self).
pub(crate) struct FaultInjector {
    pub(crate) server: Server,
    proxy: Proxy,
    volume: SmallVolume,
    random: Random,
    did: FaultCounts,
}

impl FaultInjector {
    pub(crate) fn new(
        server: Server,
        proxy: Proxy,
        volume: SmallVolume,
        random: Random,
    ) -> FaultInjector {
        let did =
            FaultCounts { full: volume.can_be_filled().then_some(0), ..FaultCounts::default() };
        FaultInjector { server, proxy, volume, random, did }
    }

    pub(crate) fn counts(&self) -> FaultCounts {
        self.did
    }

    pub(crate) fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    /// Injects faults until `ends`; leaves a running server and a network without faults.
    pub(crate) async fn inject_until(&mut self, ends: Instant, ledger: &Ledger) -> CheckResult {
        let mut received = Instant::now();
        let mut at = ledger.count();
        while Instant::now() < ends && !self.volume.is_nearly_full() {
            self.wait(2_500).await;
            match self.random.below(20) {
                0..=7 => self.kill()?,
                8..=11 => self.stop()?,
                12..=14 if self.volume.can_be_filled() => self.fill().await?,
                15..=17 => self.cut_off().await,
                _ => {}
            }
            self.restart_if_unready().await?;
            if ledger.count() > at {
                (received, at) = (Instant::now(), ledger.count());
            } else if received.elapsed() > STANDSTILL {
                return Err(format!("no call was acknowledged for {STANDSTILL:?}"));
            }
        }
        self.proxy.stop_faults();
        self.restart_if_unready().await
    }

    async fn wait(&mut self, most_ms: usize) {
        pause(Duration::from_millis(100 + self.random.below(most_ms) as u64)).await;
    }

    fn start(&mut self) -> CheckResult {
        self.server.start_again()?;
        let ms = u64::try_from(self.server.started_in.as_millis()).unwrap_or(u64::MAX);
        self.did.slowest_ms = self.did.slowest_ms.max(ms);
        Ok(())
    }

    fn kill(&mut self) -> CheckResult {
        self.did.kills += 1;
        self.server.kill();
        self.start()
    }

    fn stop(&mut self) -> CheckResult {
        self.did.stops += 1;
        self.server.stop()?;
        self.start()
    }

    /// Fills the disk for a while; sometimes the server is killed meanwhile.
    async fn fill(&mut self) -> CheckResult {
        self.did.full = self.did.full.map(|times| times + 1);
        self.volume.fill()?;
        self.wait(1_500).await;
        if self.random.one_in(3) {
            self.did.kills += 1;
            self.server.kill();
            // The start may fail for lack of space.
            let started = self.server.start_again();
            self.volume.empty();
            if started.is_err() {
                self.start()?;
            }
        }
        self.volume.empty();
        Ok(())
    }

    async fn cut_off(&mut self) {
        self.did.outages += 1;
        self.proxy.set_down(true);
        self.wait(2_000).await;
        self.proxy.set_down(false);
    }

    /// Restarts a server that is not ready, as a process supervisor does.
    async fn restart_if_unready(&mut self) -> CheckResult {
        let Ok(mut http) = Http::connect(self.server.address, "").await else {
            return Err("the server exited without being killed".to_owned());
        };
        let ready = http.get("/ready").await.map_err(|why| format!("/ready: {why}"))?;
        if ready.status == 200 {
            return Ok(());
        }
        self.did.poisoned += 1;
        self.server.kill();
        self.start()
    }
}
