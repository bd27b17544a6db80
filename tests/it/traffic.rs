//! Random, reproducible calls over all reducers: valid ones, refused ones, retries and batches.

use abide_engine::Engine;
use abide_schema::reducer::Caller;
use abide_schema::wire::BatchCall;
use abide_schema::{Refusal, Seq};
pub(crate) use abide_tests::random::Random;
use abide_tests::world::World;
use serde_json::{Value as JsonValue, json};

/// The seeds of a random test: those given, or the one in `ABIDE_SEED`. A failure prints the
/// command to reproduce it.
pub(crate) fn for_seeds(test: &str, seeds: std::ops::Range<u64>, run: impl Fn(u64)) {
    struct Hint<'a>(&'a str, u64);
    impl Drop for Hint<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                let Hint(test, seed) = self;
                eprintln!("repeat: ABIDE_SEED={seed} cargo test -p abide-tests --test it {test}");
            }
        }
    }
    let one = std::env::var("ABIDE_SEED").ok().map(|seed| seed.parse().unwrap());
    for seed in one.map_or(seeds, |seed: u64| seed..seed + 1) {
        let _hint = Hint(test, seed);
        run(seed);
    }
}

/// One unit of work: a call or a batch.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    pub(crate) caller: &'static str,
    pub(crate) calls: Vec<BatchCall>,
    pub(crate) request_id: Option<String>,
}

/// The response.
#[derive(Clone, Debug)]
pub(crate) struct UnitResult {
    /// Of each call: its seq, its result, and whether it was a retry.
    pub(crate) calls: Vec<(Seq, JsonValue, bool)>,
}

impl Unit {
    pub(crate) async fn run(&self, engine: &Engine) -> Result<UnitResult, Refusal> {
        let caller = Caller::new(self.caller);
        let request_id = self.request_id.as_deref();
        let done = match self.calls.as_slice() {
            [call] => {
                vec![engine.call(&caller, &call.reducer, &call.args, request_id).await?]
            }
            calls => engine.batch(&caller, calls, request_id).await?.results,
        };
        let calls = done
            .iter()
            .map(|done| (done.seq, serde_json::from_str(&done.result).unwrap(), done.duplicate));
        Ok(UnitResult { calls: calls.collect() })
    }
}

/// Generates random units and remembers parts of their results to generate valid further ones.
#[derive(Debug)]
pub(crate) struct Traffic {
    pub(crate) random: Random,
    made: u64,
    sessions: Vec<String>,
    /// Call ids with the last known fencing token.
    calls: Vec<(String, i64)>,
    handoffs: Vec<String>,
    timers: Vec<String>,
    last: Option<Unit>,
}

const CALLERS: [&str; 3] = ["ann", "bob", "local"];
const TOOLS: [&str; 4] = ["search", "book", "pay", "unheard_of"];
const TEXTS: [&str; 6] =
    ["", "hello", "Grüße, 世界 🙂", "a\0b", "\u{2028}\"\\\n", "x'; DROP TABLE"];

impl Traffic {
    pub(crate) fn new(seed: u64) -> Traffic {
        let random = Random::new(seed);
        let sessions = vec![];
        let calls = vec![];
        let handoffs = vec![];
        let timers = vec![];
        Traffic { random, made: 0, sessions, calls, handoffs, timers, last: None }
    }

    /// Runs the next random unit on a world, after moving its clock.
    pub(crate) async fn step(&mut self, world: &World) -> Result<UnitResult, Refusal> {
        let ms = *self.random.pick(&[0, 0, 1, 50, 2_000, 40_000]);
        world.clock.advance_ms(ms);
        let unit = self.unit();
        let received = unit.run(world.engine()).await;
        if let Ok(received) = &received {
            self.learn(received);
        }
        received
    }

    pub(crate) fn unit(&mut self) -> Unit {
        if let Some(last) = self.last.take_if(|_| self.random.one_in(12)) {
            return last; // As if the response had been lost.
        }
        let count = if self.random.one_in(6) { 2 + self.random.below(4) } else { 1 };
        let calls = (0..count).map(|_| self.call()).collect();
        self.made += 1;
        let request_id = self.random.one_in(3).then(|| format!("r{}", self.made));
        let unit = Unit { caller: self.random.pick::<&str>(&CALLERS), calls, request_id };
        self.last = Some(unit.clone());
        unit
    }

    pub(crate) fn learn(&mut self, received: &UnitResult) {
        for (_, result, _) in &received.calls {
            let text = |name: &str| result[name].as_str().map(str::to_owned);
            if let Some(call_id) = text("call_id").filter(|_| result["tool_name"].is_string()) {
                let token = result["fencing_token"].as_i64().unwrap_or(0);
                match self.calls.iter_mut().find(|(known, _)| *known == call_id) {
                    Some(known) => known.1 = token,
                    None => self.calls.push((call_id, token)),
                }
            } else if let Some(id) = text("id") {
                let list = if result["required_capability"].is_string() {
                    &mut self.handoffs
                } else if result["due_at"].is_i64() {
                    &mut self.timers
                } else if result["agent"].is_string() {
                    &mut self.sessions
                } else {
                    continue;
                };
                if !list.contains(&id) {
                    list.push(id);
                }
            }
        }
    }

    fn call(&mut self) -> BatchCall {
        let (reducer, args) = match self.random.below(22) {
            _ if self.sessions.is_empty() && self.random.one_in(2) => self.create_session(),
            _ if self.made < 10 && self.random.one_in(3) => self.register_tool(),
            0 => self.create_session(),
            1..=5 => self.append_message(),
            6 => self.move_session(),
            7 => self.register_tool(),
            8..=10 => self.request_tool_call(),
            11..=15 => self.work_on_a_call(),
            16 => self.decide_approval(),
            17 | 18 => self.handoff(),
            19 | 20 => self.timer(),
            _ => ("no_such_reducer", json!({})),
        };
        BatchCall { reducer: reducer.to_owned(), args }
    }

    fn session_id(&mut self) -> String {
        // Mostly the latest ones, so that sessions have a history before they end.
        let latest = self.sessions.len().saturating_sub(6);
        match self.sessions.len() - latest {
            0 => "s_nobody".to_owned(),
            _ if self.random.one_in(15) => "s_nobody".to_owned(),
            count => self.sessions[latest + self.random.below(count)].clone(),
        }
    }

    fn text(&mut self) -> String {
        match self.random.below(8) {
            0 => "long ".repeat(1 + self.random.below(400)),
            _ => (*self.random.pick(&TEXTS)).to_owned(),
        }
    }

    fn create_session(&mut self) -> (&'static str, JsonValue) {
        let mut args = json!({"agent": "support", "title": self.text(), "scope": {"tenant": "t1"}});
        if self.random.one_in(2) {
            args["id"] = format!("s{}", self.random.below(40)).into();
        }
        if self.random.one_in(4) {
            args["parent_id"] = self.session_id().into();
        }
        ("create_session", args)
    }

    fn append_message(&mut self) -> (&'static str, JsonValue) {
        let content = if self.random.one_in(6) { JsonValue::Null } else { self.text().into() };
        let role = *self.random.pick(&["user", "assistant", "tool", "system"]);
        let mut args = json!({"session_id": self.session_id(), "role": role, "content": content});
        if self.random.one_in(3) {
            args["data"] = json!({"n": self.random.below(100), "x": 1.5, "deep": [[null, true]]});
        }
        ("append_message", args)
    }

    fn move_session(&mut self) -> (&'static str, JsonValue) {
        let id = self.session_id();
        let text = self.text();
        match self.random.below(9) {
            0..=3 => ("suspend_session", json!({"session_id": id, "reason": text})),
            4..=6 => ("resume_session", json!({"session_id": id})),
            7 if self.random.one_in(2) => {
                ("complete_session", json!({"session_id": id, "result": {"text": text}}))
            }
            7 => ("cancel_session", json!({"session_id": id, "reason": text})),
            _ => ("fail_session", json!({"session_id": id, "code": "boom", "message": text})),
        }
    }

    fn register_tool(&mut self) -> (&'static str, JsonValue) {
        let effect = *self.random.pick(&["read_only", "idempotent", "at_most_once"]);
        let mut args = json!({
            "name": self.random.pick(&TOOLS[..3]),
            "effect": effect,
            "needs_approval": self.random.one_in(3),
            "description": self.text(),
        });
        match self.random.below(8) {
            0 => args["limits"] = json!({"concurrency": 2}),
            1 => args["limits"] = json!({"rate": {"calls": 2, "per_ms": 40_000}}),
            2 => args["retry"] = json!({"max_attempts": 4, "backoff_ms": 20_000}),
            3 => args["approval"] = json!({"expires_after_ms": 40_000, "prompt": "?"}),
            4 => args["timeout_ms"] = 10_000.into(),
            5 => args["input_schema"] = json!({"properties": {"n": {"maximum": 1}}}),
            _ => {}
        }
        ("register_tool", args)
    }

    fn request_tool_call(&mut self) -> (&'static str, JsonValue) {
        let call_id = match self.calls.len() {
            0 => "c0".to_owned(),
            known if self.random.one_in(6) => self.calls[self.random.below(known)].0.clone(),
            known => format!("c{known}"),
        };
        let mut args = json!({
            "call_id": call_id,
            "session_id": self.session_id(),
            "tool_name": self.random.pick(&TOOLS),
            "arguments": {"q": self.text(), "n": self.random.below(3)},
            "provider_call_id": "call_1",
        });
        if self.random.one_in(4) {
            args["claim_lease_ms"] = 10_000.into();
        }
        ("request_tool_call", args)
    }

    fn a_call(&mut self) -> (String, i64) {
        let latest = self.calls.len().saturating_sub(5);
        match self.calls.len() - latest {
            0 => ("c_nobody".to_owned(), 1),
            count => self.calls[latest + self.random.below(count)].clone(),
        }
    }

    fn work_on_a_call(&mut self) -> (&'static str, JsonValue) {
        let (call_id, mut fencing_token) = self.a_call();
        if self.random.one_in(8) {
            fencing_token -= 1;
        }
        let text = self.text();
        let token = fencing_token;
        match self.random.below(11) {
            0..=2 => ("claim_tool_call", json!({"call_id": call_id, "lease_ms": 30_000})),
            8 => ("claim_next_tool_call", json!({"tools": TOOLS[..3], "lease_ms": 30_000})),
            9 if self.random.one_in(3) => ("cancel_tool_call", json!({"call_id": call_id})),
            9 | 10 => ("acknowledge_cancel", json!({"call_id": call_id, "fencing_token": token})),
            3 => ("heartbeat_tool_call", json!({"call_id": call_id, "fencing_token": token})),
            4 | 5 => {
                let result = json!({"found": text});
                let args = json!({"call_id": call_id, "fencing_token": token, "result": result});
                ("complete_tool_call", args)
            }
            6 => {
                let retryable = self.random.one_in(2);
                let args = json!({"call_id": call_id, "fencing_token": token, "error": text,
                    "retryable": retryable});
                ("fail_tool_call", args)
            }
            _ => {
                let outcome = *self.random.pick(&["succeeded", "failed"]);
                ("settle_tool_call", json!({"call_id": call_id, "outcome": outcome}))
            }
        }
    }

    fn decide_approval(&mut self) -> (&'static str, JsonValue) {
        let (call_id, _) = self.a_call();
        let mut args = json!({"call_id": call_id, "comment": self.text()});
        args["decision"] = (*self.random.pick(&["approve", "approve", "reject"])).into();
        if self.random.one_in(4) {
            args["approved_arguments"] = json!({"edited": true});
        }
        ("decide_approval", args)
    }

    fn handoff(&mut self) -> (&'static str, JsonValue) {
        let id = match self.handoffs.last() {
            Some(last) if !self.random.one_in(6) => last.clone(),
            _ => "ho_nobody".to_owned(),
        };
        match self.random.below(9) {
            0..=2 => {
                let mut args = json!({"session_id": self.session_id(), "reason": self.text(),
                    "required_capability": "refunds"});
                match self.random.below(4) {
                    0 => args["escalate_after_ms"] = 40_000.into(),
                    1 => args["expires_after_ms"] = 80_000.into(),
                    _ => {}
                }
                ("request_supervisor_handoff", args)
            }
            8 => ("heartbeat_handoff", json!({"id": id, "lease_ms": 40_000})),
            3 | 4 => ("claim_handoff", json!({"id": id})),
            5 => ("release_handoff", json!({"id": id})),
            6 => ("resolve_handoff", json!({"id": id, "resolution": self.text()})),
            _ => ("reject_handoff", json!({"id": id, "reason": self.text()})),
        }
    }

    fn timer(&mut self) -> (&'static str, JsonValue) {
        let known = self.timers.len();
        if known > 0 && self.random.one_in(4) {
            return ("cancel_timer", json!({"id": self.timers[self.random.below(known)]}));
        }
        let mut args = json!({"in_ms": self.random.below(100_000)});
        if self.random.one_in(2) {
            args["session_id"] = self.session_id().into();
            args["message"] = self.text().into();
            args["resume"] = self.random.one_in(2).into();
        }
        ("set_timer", args)
    }
}
