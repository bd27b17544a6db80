//! Tool calls: after any crash, an effect that must not run twice does not, and one that may is not
//! lost.

use std::collections::BTreeMap;

use abide_schema::Code;
use abide_tests::world::{World, run};
use serde_json::json;

use super::{CallAnswer, call, rows};
use crate::traffic::{Random, for_seeds};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Pending,
    AwaitingApproval,
    Claimed,
    Succeeded,
    Failed,
    Rejected,
    Cancelled,
    Unknown,
}

use Status::{AwaitingApproval, Cancelled, Claimed, Failed, Pending, Rejected, Succeeded, Unknown};

impl Status {
    fn text(self) -> &'static str {
        match self {
            Pending => "pending",
            AwaitingApproval => "awaiting_approval",
            Claimed => "claimed",
            Succeeded => "succeeded",
            Failed => "failed",
            Rejected => "rejected",
            Cancelled => "cancelled",
            Unknown => "unknown",
        }
    }

    fn ended(self) -> bool {
        matches!(self, Succeeded | Failed | Rejected | Cancelled)
    }
}

/// A tool of the tests: its effect class and its rules.
struct Tool {
    name: &'static str,
    effect: &'static str,
    needs_approval: bool,
    max_attempts: i64,
    backoff_ms: i64,
}

const TOOLS: [Tool; 4] = [
    Tool::new("look", "read_only", false, 1_000, 700),
    Tool::new("put", "idempotent", false, 1_000, 0),
    Tool::new("pay", "at_most_once", false, 3, 0),
    Tool::new("wire", "at_most_once", true, 3, 0),
];

impl Tool {
    const fn new(
        name: &'static str,
        effect: &'static str,
        needs_approval: bool,
        max_attempts: i64,
        backoff_ms: i64,
    ) -> Tool {
        Tool { name, effect, needs_approval, max_attempts, backoff_ms }
    }

    fn once(&self) -> bool {
        self.effect == "at_most_once"
    }

    fn wait_ms(&self, attempt: i64) -> i64 {
        let doublings = u32::try_from((attempt - 2).clamp(0, 20)).unwrap();
        if attempt < 2 { 0 } else { (self.backoff_ms * 2_i64.pow(doublings)).min(60_000) }
    }
}

/// The report of a worker about an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkerReport {
    Completed,
    Failed,
    Retry,
    Stopped,
}

/// The expected state of a call.
#[derive(Debug)]
struct Call {
    tool: usize,
    session: usize,
    status: Status,
    attempt: i64,
    token: i64,
    lease_until: i64,
    retry_at: Option<i64>,
    /// Whether its worker is asked to stop.
    unwanted: bool,
    /// The report that ended it, with its holder.
    ended_by: Option<(i64, WorkerReport)>,
    settled: bool,
    /// The expired claims, and whether their holders' late reports were accepted.
    lost: BTreeMap<i64, bool>,
    decided: Option<&'static str>,
    /// How often the external effect ran.
    ran: u32,
}

/// A worker's claim of a call. The call may be lost without the worker's knowledge.
#[derive(Clone, Copy, Debug)]
struct WorkerClaim {
    call: usize,
    token: i64,
    ran: bool,
}

#[derive(Debug, Default)]
struct Session {
    ended: bool,
    cancelling: bool,
}

struct Model {
    world: World,
    random: Random,
    now: i64,
    sessions: Vec<Session>,
    calls: Vec<Call>,
    holds: Vec<WorkerClaim>,
    /// The last reports, to be repeated as if the response had been lost.
    reports: Vec<(WorkerClaim, WorkerReport)>,
}

impl Model {
    async fn new(seed: u64) -> Model {
        let world = World::new(abide_reducers::modules);
        for tool in &TOOLS {
            let args = json!({"name": tool.name, "effect": tool.effect,
                "needs_approval": tool.needs_approval,
                "retry": {"max_attempts": tool.max_attempts, "backoff_ms": tool.backoff_ms}});
            world.call("register_tool", args).await.unwrap();
        }
        let random = Random::new(seed);
        let now = 0;
        let sessions = vec![];
        let calls = vec![];
        let holds = vec![];
        let reports = vec![];
        let mut model = Model { world, random, now, sessions, calls, holds, reports };
        model.new_session().await;
        model
    }

    async fn step(&mut self) {
        match self.random.below(26) {
            0 => self.new_session().await,
            1..=4 => self.request().await,
            5..=8 => self.claim().await,
            9..=11 => self.run_effect(),
            12..=15 => self.append_messages().await,
            16 => self.repeat_report().await,
            17 => self.heartbeat().await,
            18 => self.crash(),
            19 => self.decide().await,
            20 => self.settle().await,
            21 if self.random.one_in(3) => self.cancel_call().await,
            22 if self.random.one_in(6) => self.end_session().await,
            23 if self.random.one_in(8) => {
                self.world.drop_engine();
                self.world.open();
            }
            _ => self.pass_time().await,
        }
    }

    async fn new_session(&mut self) {
        let id = format!("s{}", self.sessions.len());
        let args = json!({"agent": "support", "id": id});
        self.world.call("create_session", args).await.unwrap();
        self.sessions.push(Session::default());
    }

    async fn request(&mut self) {
        if !self.calls.is_empty() && self.random.one_in(5) {
            let at = self.random.below(self.calls.len());
            let tool = self.calls[at].tool;
            let session = self.calls[at].session;
            let response = self.ask(at, tool, session, None).await;
            assert!(matches!(response, Ok((_, true))), "c{at} again: {response:?}");
            return;
        }
        let at = self.calls.len();
        let tool = self.random.below(TOOLS.len());
        let session = self.random.below(self.sessions.len());
        let lease_ms = self.random.one_in(3).then(|| self.lease_ms());
        let response = self.ask(at, tool, session, lease_ms).await;
        let Session { ended, cancelling } = self.sessions[session];
        if ended || cancelling {
            assert_eq!(response.unwrap_err(), Code::BadTransition);
            return;
        }
        let (row, duplicate) = response.unwrap();
        assert!(!duplicate);
        self.calls.push(Call {
            tool,
            session,
            status: if TOOLS[tool].needs_approval { AwaitingApproval } else { Pending },
            attempt: 0,
            token: 0,
            lease_until: 0,
            retry_at: None,
            unwanted: false,
            ended_by: None,
            settled: false,
            lost: BTreeMap::new(),
            decided: None,
            ran: 0,
        });
        if let Some(lease_ms) = lease_ms.filter(|_| !TOOLS[tool].needs_approval) {
            self.claimed(at, lease_ms, &row);
        }
    }

    async fn ask(
        &mut self,
        at: usize,
        tool: usize,
        session: usize,
        lease_ms: Option<i64>,
    ) -> CallAnswer {
        let args = json!({"call_id": format!("c{at:03}"), "session_id": format!("s{session}"),
            "tool_name": TOOLS[tool].name, "arguments": {"n": at}, "claim_lease_ms": lease_ms});
        call(&self.world, "worker", "request_tool_call", args).await
    }

    fn lease_ms(&mut self) -> i64 {
        *self.random.pick(&[50, 400, 3_000])
    }

    fn a_call(&mut self) -> Option<usize> {
        let latest = self.calls.len().saturating_sub(12);
        (!self.calls.is_empty()).then(|| latest + self.random.below(self.calls.len() - latest))
    }

    async fn claim(&mut self) {
        let Some(at) = self.a_call() else { return };
        let lease_ms = self.lease_ms();
        let args = json!({"call_id": format!("c{at:03}"), "lease_ms": lease_ms});
        let response = call(&self.world, "worker", "claim_tool_call", args).await;
        let it = &self.calls[at];
        if it.status != Pending || it.retry_at.is_some() {
            assert_eq!(response.unwrap_err(), Code::Conflict, "{it:?}");
            return;
        }
        self.claimed(at, lease_ms, &response.unwrap().0);
    }

    fn claimed(&mut self, at: usize, lease_ms: i64, row: &serde_json::Value) {
        let it = &mut self.calls[at];
        it.status = Claimed;
        it.attempt += 1;
        it.lease_until = self.now + lease_ms;
        let token = row["fencing_token"].as_i64().unwrap();
        assert!(token > it.token, "tokens grow");
        it.token = token;
        self.holds.push(WorkerClaim { call: at, token, ran: false });
    }

    /// The external effect runs, regardless of the lease.
    fn run_effect(&mut self) {
        let count = self.holds.len();
        if count == 0 {
            return;
        }
        let hold = &mut self.holds[self.random.below(count)];
        if !hold.ran {
            hold.ran = true;
            self.calls[hold.call].ran += 1;
        }
    }

    async fn append_messages(&mut self) {
        let count = self.holds.len();
        if count == 0 {
            return;
        }
        let hold = self.holds.swap_remove(self.random.below(count));
        let tool = &TOOLS[self.calls[hold.call].tool];
        // Workers report what happened, and do not release a call whose effect
        // ran. They do not know whether they still hold the call.
        let report = match (hold.ran, self.random.below(5)) {
            (true, 0..=2) => WorkerReport::Completed,
            (true, 3) => WorkerReport::Failed,
            (true, _) if tool.once() => WorkerReport::Completed,
            (false, 0) if tool.once() => WorkerReport::Failed,
            (false, 1) if self.calls[hold.call].unwanted => WorkerReport::Stopped,
            _ => WorkerReport::Retry,
        };
        self.send_report(hold, report).await;
        self.reports.push((hold, report));
    }

    async fn repeat_report(&mut self) {
        let latest = self.reports.len().saturating_sub(5);
        if let Some((hold, report)) = self.reports.get(latest + self.random.below(5)).copied() {
            self.send_report(hold, report).await;
        }
    }

    async fn send_report(&mut self, hold: WorkerClaim, report: WorkerReport) {
        let mut args =
            json!({"call_id": format!("c{:03}", hold.call), "fencing_token": hold.token});
        let reducer = match report {
            WorkerReport::Completed => {
                args["result"] = json!({"done": hold.token});
                "complete_tool_call"
            }
            WorkerReport::Failed | WorkerReport::Retry => {
                args["error"] = format!("{report:?} {}", hold.token).into();
                args["retryable"] = (report == WorkerReport::Retry).into();
                "fail_tool_call"
            }
            WorkerReport::Stopped => "acknowledge_cancel",
        };
        let response = call(&self.world, "worker", reducer, args).await;
        let expected = self.expect_report(hold, report);
        let outcome = response.as_ref().map(|(_, duplicate)| *duplicate).map_err(|code| *code);
        assert_eq!(outcome, expected, "{report:?} {hold:?} of {:?}", self.calls[hold.call]);
    }

    /// The expected response: ended, a retry, or the refusal.
    fn expect_report(&mut self, hold: WorkerClaim, report: WorkerReport) -> Result<bool, Code> {
        let it = &mut self.calls[hold.call];
        if it.status == Claimed && it.token == hold.token {
            if report == WorkerReport::Stopped && !it.unwanted {
                return Err(Code::Conflict);
            }
            let tool = &TOOLS[it.tool];
            it.ended_by = Some((hold.token, report));
            it.status = match report {
                WorkerReport::Completed => Succeeded,
                WorkerReport::Failed => Failed,
                WorkerReport::Stopped => Cancelled,
                WorkerReport::Retry if it.unwanted => Cancelled,
                WorkerReport::Retry if it.attempt < tool.max_attempts => Pending,
                WorkerReport::Retry => Failed,
            };
            if it.status == Pending {
                let wait_ms = tool.wait_ms(it.attempt);
                it.retry_at = (wait_ms > 0).then(|| self.now + wait_ms);
            }
            self.session_may_end(hold.call);
            return Ok(false);
        }
        if report != WorkerReport::Stopped
            && let Some(reported) = it.lost.get_mut(&hold.token)
        {
            *reported = true;
            return Err(Code::LeaseLost);
        }
        let again = it.ended_by == Some((hold.token, report)) && it.token == hold.token;
        if again && (it.status != Cancelled || report == WorkerReport::Stopped) {
            return Ok(true);
        }
        if report == WorkerReport::Stopped && it.status == Cancelled && it.token == hold.token {
            return Ok(true);
        }
        Err(it.not_held(hold.token))
    }

    async fn heartbeat(&mut self) {
        let count = self.holds.len();
        if count == 0 {
            return;
        }
        let hold = self.holds[self.random.below(count)];
        let lease_ms = self.lease_ms();
        let args = json!({"call_id": format!("c{:03}", hold.call), "fencing_token": hold.token,
            "lease_ms": lease_ms});
        let response = call(&self.world, "worker", "heartbeat_tool_call", args).await;
        let it = &mut self.calls[hold.call];
        if it.status == Claimed && it.token == hold.token {
            let (row, _) = response.unwrap();
            assert_eq!(row["cancel_requested_at"].is_null(), !it.unwanted);
            it.lease_until = it.lease_until.max(self.now + lease_ms);
        } else {
            assert_eq!(response.unwrap_err(), it.not_held(hold.token));
        }
    }

    /// A worker crashes, before the effect or after it.
    fn crash(&mut self) {
        let count = self.holds.len();
        if count > 0 {
            let at = self.random.below(count);
            self.holds.swap_remove(at);
        }
    }

    async fn decide(&mut self) {
        let Some(at) = self.a_call() else { return };
        let decision = *self.random.pick(&["approve", "approve", "reject"]);
        let args = json!({"call_id": format!("c{at:03}"), "decision": decision});
        let response = call(&self.world, "ann", "decide_approval", args).await;
        let it = &mut self.calls[at];
        if !TOOLS[it.tool].needs_approval {
            assert_eq!(response.unwrap_err(), Code::NotFound);
        } else if it.decided == Some(decision) {
            assert!(response.unwrap().1, "the same decision again");
        } else if it.status == AwaitingApproval {
            assert!(!response.unwrap().1);
            it.decided = Some(decision);
            it.status = if decision == "approve" { Pending } else { Rejected };
        } else {
            assert_eq!(response.unwrap_err(), Code::Conflict, "{it:?}");
        }
    }

    async fn settle(&mut self) {
        let unknown: Vec<usize> =
            (0..self.calls.len()).filter(|at| self.calls[*at].status == Unknown).collect();
        let at = if unknown.is_empty() || self.random.one_in(4) {
            let Some(at) = self.a_call() else { return };
            at
        } else {
            *self.random.pick(&unknown)
        };
        // An operator checks whether the effect ran.
        let ran = self.calls[at].ran > 0;
        let args = if ran {
            json!({"call_id": format!("c{at:03}"), "outcome": "succeeded", "result": 1})
        } else {
            json!({"call_id": format!("c{at:03}"), "outcome": "failed", "error": "it never ran"})
        };
        let response = call(&self.world, "ann", "settle_tool_call", args).await;
        let it = &mut self.calls[at];
        if it.status == Unknown {
            assert!(!response.unwrap().1);
            it.status = if ran { Succeeded } else { Failed };
            it.settled = true;
        } else if it.settled && (it.status == Succeeded) == ran {
            assert!(response.unwrap().1, "the same settlement again");
        } else {
            assert_eq!(response.unwrap_err(), Code::Conflict, "{it:?}");
        }
    }

    async fn cancel_call(&mut self) {
        let Some(at) = self.a_call() else { return };
        let args = json!({"call_id": format!("c{at:03}")});
        let response = call(&self.world, "ann", "cancel_tool_call", args).await;
        let it = &mut self.calls[at];
        match it.status {
            Pending | AwaitingApproval => {
                assert!(!response.unwrap().1);
                it.status = Cancelled;
                it.retry_at = None;
            }
            Claimed => {
                assert_eq!(response.unwrap().1, it.unwanted);
                it.unwanted = true;
            }
            Cancelled => assert!(response.unwrap().1),
            _ => assert_eq!(response.unwrap_err(), Code::Conflict),
        }
    }

    /// A session is completed or cancelled.
    async fn end_session(&mut self) {
        let at = self.random.below(self.sessions.len());
        let args = json!({"session_id": format!("s{at}")});
        let complete = self.random.one_in(3);
        let reducer = if complete { "complete_session" } else { "cancel_session" };
        let response = call(&self.world, "ann", reducer, args).await;
        let session = &mut self.sessions[at];
        if session.ended || session.cancelling {
            if complete && !session.ended {
                assert!(!response.unwrap().1);
                session.ended = true;
                session.cancelling = false;
            } else if session.cancelling {
                assert!(response.unwrap().1, "asked for before");
            } else if let Err(code) = response {
                assert_eq!(code, Code::BadTransition);
            }
            return;
        }
        response.unwrap();
        let mut running = 0;
        for it in self.calls.iter_mut().filter(|it| it.session == at) {
            match it.status {
                Pending | AwaitingApproval => {
                    it.status = Cancelled;
                    it.retry_at = None;
                }
                Claimed => {
                    it.unwanted = true;
                    running += 1;
                }
                _ => {}
            }
        }
        session.ended = complete || running == 0;
        session.cancelling = !session.ended;
    }

    fn session_may_end(&mut self, call: usize) {
        let at = self.calls[call].session;
        let runs = self.calls.iter().any(|it| it.session == at && it.status == Claimed);
        let session = &mut self.sessions[at];
        if session.cancelling && !runs {
            (session.ended, session.cancelling) = (true, false);
        }
    }

    async fn pass_time(&mut self) {
        let ms = *self.random.pick(&[0, 1, 49, 400, 2_000, 30_000]);
        self.pass_ms(ms).await;
    }

    async fn pass_ms(&mut self, ms: i64) {
        self.world.pass_ms(ms).await;
        self.now += ms;
        for at in 0..self.calls.len() {
            let it = &mut self.calls[at];
            if it.status == Claimed && it.lease_until <= self.now {
                let tool = &TOOLS[it.tool];
                it.lost.insert(it.token, false);
                it.status = if tool.once() {
                    Unknown
                } else if it.unwanted {
                    Cancelled
                } else if it.attempt < tool.max_attempts {
                    let wait_ms = tool.wait_ms(it.attempt);
                    it.retry_at = (wait_ms > 0).then(|| self.now + wait_ms);
                    Pending
                } else {
                    Failed
                };
                self.session_may_end(at);
            }
            let it = &mut self.calls[at];
            if it.retry_at.is_some_and(|retry_at| retry_at <= self.now) {
                it.retry_at = None;
            }
        }
    }

    /// Compares every row with the model.
    async fn compare(&self) {
        let stored = rows(
            &self.world,
            "SELECT call_id, status, attempt, retry_at IS NOT NULL FROM tool_calls
            ORDER BY call_id",
        );
        let expected: Vec<String> = (self.calls.iter().enumerate())
            .map(|(at, it)| {
                let waits = i64::from(it.retry_at.is_some());
                format!("c{at:03} {} {} {waits}", it.status.text(), it.attempt)
            })
            .collect();
        assert_eq!(stored.await, expected);
        let reported = "SELECT call_id, fencing_token, reported_at IS NOT NULL FROM lost_leases
            ORDER BY call_id, fencing_token";
        let lost = self.calls.iter().enumerate().flat_map(|(at, it)| {
            it.lost
                .iter()
                .map(move |(token, reported)| format!("c{at:03} {token} {}", i64::from(*reported)))
        });
        assert_eq!(rows(&self.world, reported).await, lost.collect::<Vec<_>>());
        let ended = rows(
            &self.world,
            "SELECT count(*) FROM sessions WHERE status IN ('completed', 'failed')",
        );
        let expected = self.sessions.iter().filter(|session| session.ended).count();
        assert_eq!(ended.await, [expected.to_string()]);
        for it in self.calls.iter().filter(|it| TOOLS[it.tool].once()) {
            assert!(it.ran <= 1, "the effect ran twice: {it:?}");
        }
    }

    /// Workers without faults finish the remaining calls, and unknown calls are settled.
    async fn finish(&mut self) {
        self.holds.clear();
        for _ in 0..60 {
            for at in 0..self.calls.len() {
                if self.calls[at].status == AwaitingApproval {
                    let args = json!({"call_id": format!("c{at:03}"), "decision": "approve"});
                    call(&self.world, "ann", "decide_approval", args).await.unwrap();
                    self.calls[at].status = Pending;
                }
                if self.calls[at].status == Pending && self.calls[at].retry_at.is_none() {
                    let args = json!({"call_id": format!("c{at:03}"), "lease_ms": 1_000});
                    let row = call(&self.world, "worker", "claim_tool_call", args).await.unwrap().0;
                    self.claimed(at, 1_000, &row);
                    let mut hold = self.holds.pop().unwrap();
                    hold.ran = true;
                    self.calls[at].ran += 1;
                    self.send_report(hold, WorkerReport::Completed).await;
                }
            }
            self.pass_ms(2_000).await;
        }
        for at in 0..self.calls.len() {
            while self.calls[at].status == Unknown {
                self.settle().await;
            }
        }
        self.compare().await;
    }

    fn evaluate(&self) {
        for it in &self.calls {
            let tool = &TOOLS[it.tool];
            assert!(it.status.ended(), "the call never ended: {it:?}");
            if tool.once() {
                assert!(it.ran <= 1, "the effect ran twice: {it:?}");
            } else if !matches!(it.status, Cancelled | Rejected) {
                assert!(it.ran >= 1, "the call was lost: {it:?}");
            }
            if it.status == Succeeded {
                assert!(it.ran >= 1, "the call succeeded without its effect: {it:?}");
            }
        }
        assert!(self.sessions.iter().all(|session| !session.cancelling), "half cancelled");
    }
}

impl Call {
    /// The expected refusal if a token does not hold the call any more.
    fn not_held(&self, token: i64) -> Code {
        match self.status {
            Succeeded | Failed | Rejected | Cancelled if self.token == token => Code::Conflict,
            _ => Code::LeaseLost,
        }
    }
}

#[test]
fn effects_happen_as_often_as_they_may() {
    for_seeds("model::calls::effects_happen", 0..12, |seed| {
        run(async {
            let mut model = Model::new(seed).await;
            for step in 0..900 {
                model.step().await;
                if step % 10 == 0 {
                    model.compare().await;
                }
            }
            model.compare().await;
            model.finish().await;
            model.evaluate();
            // The run covered all outcomes.
            let seen = |status| model.calls.iter().filter(|it| it.status == status).count();
            let lost = model.calls.iter().map(|it| it.lost.len()).sum::<usize>();
            assert!(seen(Succeeded) > 10 && lost > 10, "{} of {}", seen(Succeeded), lost);
        });
    });
}
