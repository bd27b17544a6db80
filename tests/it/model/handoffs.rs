//! Handoffs: one supervisor at a time, and every session returns even if supervisors crash.

use abide_schema::Code;
use abide_tests::world::{World, run};
use serde_json::json;

use super::{call, rows};
use crate::traffic::{Random, for_seeds};

const SUPERVISORS: [&str; 3] = ["ann", "bob", "eve"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Pending,
    Claimed,
    Resolved,
    Rejected,
    Expired,
    Cancelled,
}

use Status::{Cancelled, Claimed, Expired, Pending, Rejected, Resolved};

#[derive(Debug)]
struct Handoff {
    id: String,
    session: usize,
    status: Status,
    holder: &'static str,
    token: i64,
    lease_until: i64,
    escalate_at: Option<i64>,
    escalated: bool,
    expires_at: Option<i64>,
}

struct Model {
    world: World,
    random: Random,
    now: i64,
    /// Whether each session has ended.
    sessions: Vec<bool>,
    handoffs: Vec<Handoff>,
    /// Messages that returned to sessions.
    output: usize,
}

impl Model {
    async fn step(&mut self) {
        match self.random.below(12) {
            0 if self.sessions.iter().filter(|ended| !**ended).count() < 4 => {
                self.new_session().await;
            }
            1..=3 => self.request().await,
            4..=8 => self.work().await,
            9 if self.random.one_in(5) => self.cancel_session().await,
            10 if self.random.one_in(8) => {
                self.world.drop_engine();
                self.world.open();
            }
            _ => {
                let ms = *self.random.pick(&[0, 10, 100, 499, 1_000, 5_000]);
                self.pass_ms(ms).await;
            }
        }
    }

    async fn new_session(&mut self) {
        let id = format!("s{}", self.sessions.len());
        self.world.session(&id).await;
        self.sessions.push(false);
    }

    async fn request(&mut self) {
        let session = self.random.below(self.sessions.len());
        let mut after = || self.random.one_in(3).then_some(3_000);
        let escalate = after();
        let expire = after().map(|ms| ms * 2);
        let args = json!({"session_id": format!("s{session}"), "reason": "help",
            "required_capability": "refunds", "escalate_after_ms": escalate,
            "escalate_to": escalate.map(|_| "managers"), "expires_after_ms": expire});
        let answered = call(&self.world, "agent", "request_supervisor_handoff", args).await;
        let open = self.handoffs.iter().any(|it| it.session == session && it.is_open());
        if self.sessions[session] {
            assert_eq!(answered.unwrap_err(), Code::BadTransition);
        } else if open {
            assert_eq!(answered.unwrap_err(), Code::Conflict);
        } else {
            let id = answered.unwrap().0["id"].as_str().unwrap().to_owned();
            self.handoffs.push(Handoff {
                id,
                session,
                status: Pending,
                holder: "",
                token: 0,
                lease_until: 0,
                escalate_at: escalate.map(|ms| self.now + ms),
                escalated: false,
                expires_at: expire.map(|ms| self.now + ms),
            });
        }
    }

    /// A supervisor acts on one of the latest handoffs.
    async fn work(&mut self) {
        let open = |at: &usize| self.handoffs[*at].is_open();
        let open: Vec<usize> = (0..self.handoffs.len()).filter(open).collect();
        let at = match (open.is_empty(), self.handoffs.len()) {
            (_, 0) => return,
            (false, _) if !self.random.one_in(4) => *self.random.pick(&open),
            (_, count) => self.random.below(count),
        };
        let holder = Some(self.handoffs[at].holder)
            .filter(|holder| !holder.is_empty())
            .filter(|_| !self.random.one_in(4));
        let who = holder.unwrap_or(*self.random.pick(&SUPERVISORS));
        let reducer = *self.random.pick(&[
            "claim_handoff",
            "claim_handoff",
            "heartbeat_handoff",
            "release_handoff",
            "resolve_handoff",
            "reject_handoff",
        ]);
        let lease_ms = *self.random.pick(&[500, 4_000]);
        let stale = self.random.one_in(6);
        let it = &mut self.handoffs[at];
        let mut args = json!({"id": it.id});
        match reducer {
            "claim_handoff" => args["lease_ms"] = lease_ms.into(),
            "heartbeat_handoff" => args["lease_ms"] = lease_ms.into(),
            "resolve_handoff" => args["resolution"] = "approved".into(),
            "reject_handoff" => args["reason"] = "no".into(),
            _ => {}
        }
        if stale && reducer != "claim_handoff" {
            args["fencing_token"] = (it.token - 1).into();
        }
        let answered = call(&self.world, who, reducer, args).await;
        if reducer == "claim_handoff" {
            if it.status == Pending {
                let token = answered.unwrap().0["fencing_token"].as_i64().unwrap();
                assert!(token > it.token, "tokens grow");
                (it.status, it.holder, it.token) = (Claimed, who, token);
                it.lease_until = self.now + lease_ms;
            } else {
                assert_eq!(answered.unwrap_err(), Code::Conflict, "{it:?}");
            }
            return;
        }
        if it.status != Claimed || it.holder != who || stale {
            let lost = stale && it.is_open();
            let code = if lost { Code::LeaseLost } else { Code::Conflict };
            assert_eq!(answered.unwrap_err(), code, "{who} {reducer} {it:?}");
            return;
        }
        answered.unwrap();
        match reducer {
            "heartbeat_handoff" => it.lease_until = it.lease_until.max(self.now + lease_ms),
            "release_handoff" => {
                (it.status, it.holder) = (Pending, "");
                // Deadlines that were postponed by a claim happen now.
                self.pass_ms(0).await;
            }
            "resolve_handoff" => it.status = Resolved,
            _ => it.status = Rejected,
        }
        self.output += usize::from(matches!(reducer, "resolve_handoff" | "reject_handoff"));
    }

    async fn cancel_session(&mut self) {
        let at = self.random.below(self.sessions.len());
        let args = json!({"session_id": format!("s{at}")});
        let (_, duplicate) = call(&self.world, "agent", "cancel_session", args).await.unwrap();
        assert_eq!(duplicate, self.sessions[at]);
        self.sessions[at] = true;
        for it in self.handoffs.iter_mut().filter(|it| it.session == at && it.is_open()) {
            it.status = Cancelled;
        }
    }

    /// Supervisors without faults resolve the remaining handoffs.
    async fn finish(&mut self) {
        self.pass_ms(60_000).await;
        for it in self.handoffs.iter_mut().filter(|it| it.status == Pending) {
            call(&self.world, "ann", "claim_handoff", json!({"id": it.id})).await.unwrap();
            let answer = json!({"id": it.id, "resolution": "approved"});
            call(&self.world, "ann", "resolve_handoff", answer).await.unwrap();
            (it.status, it.holder) = (Resolved, "ann");
            self.output += 1;
        }
        self.compare().await;
        assert!(self.handoffs.iter().all(|it| !it.is_open()), "every session returned");
    }

    async fn pass_ms(&mut self, ms: i64) {
        self.world.pass_ms(ms).await;
        self.now += ms;
        for it in &mut self.handoffs {
            if it.status == Claimed && it.lease_until <= self.now {
                (it.status, it.holder) = (Pending, "");
            }
            if it.status != Pending {
                continue;
            }
            if it.escalate_at.is_some_and(|at| at <= self.now) {
                it.escalated = true;
                it.escalate_at = None;
            }
            if it.expires_at.is_some_and(|at| at <= self.now) {
                it.status = Expired;
                self.output += 1;
            }
        }
    }

    async fn compare(&self) {
        let sql = "SELECT id, status, coalesce(claimed_by, ''), required_capability
            FROM handoff_requests ORDER BY created_at, id";
        let mut expected: Vec<String> = self.handoffs.iter().map(Handoff::text).collect();
        let mut stored = rows(&self.world, sql).await;
        expected.sort();
        stored.sort();
        assert_eq!(stored, expected);
        let sql = "SELECT id FROM sessions WHERE status = 'handed_off' ORDER BY id";
        let mut expected: Vec<String> = (self.handoffs.iter())
            .filter(|it| it.is_open())
            .map(|it| format!("s{}", it.session))
            .collect();
        expected.sort();
        assert_eq!(
            rows(&self.world, sql).await,
            expected,
            "handed off while a supervisor may respond"
        );
        let output = rows(&self.world, "SELECT count(*) FROM agent_state WHERE kind = 'handoff'");
        assert_eq!(output.await, [self.output.to_string()], "every response returned once");
    }
}

impl Handoff {
    fn is_open(&self) -> bool {
        matches!(self.status, Pending | Claimed)
    }

    fn text(&self) -> String {
        let status = match self.status {
            Pending => "pending",
            Claimed => "claimed",
            Resolved => "resolved",
            Rejected => "rejected",
            Expired => "expired",
            Cancelled => "cancelled",
        };
        let capability = if self.escalated { "managers" } else { "refunds" };
        format!("{} {status} {} {capability}", self.id, self.holder)
    }
}

#[test]
fn sessions_return_after_each_handoff() {
    for_seeds("model::handoffs::sessions_return_after_each_handoff", 0..10, |seed| {
        run(async {
            let world = World::new(abide_reducers::modules);
            let random = Random::new(seed);
            let sessions = vec![];
            let handoffs = vec![];
            let mut model = Model { world, random, now: 0, sessions, handoffs, output: 0 };
            model.new_session().await;
            for step in 0..500 {
                model.step().await;
                if step % 10 == 0 {
                    model.compare().await;
                }
            }
            let on_the_way = model.output;
            model.finish().await;
            let seen = |status| model.handoffs.iter().filter(|it| it.status == status).count();
            let answered = seen(Resolved) + seen(Rejected);
            let cancelled = seen(Cancelled);
            assert!(on_the_way > 5 && answered > 5 && cancelled > 0, "{on_the_way} {answered}");
        });
    });
}
