//! The callers: apps, workers, supervisors, auditors. They know only the responses that they
//! received.

use abide_schema::wire::BatchCall;
use serde_json::{Value as JsonValue, json};

use crate::checks::effects::Effects;
use crate::checks::visibility;
use crate::random::Random;
use crate::rig::SimRequest;

const TOOLS: [&str; 3] = ["look", "pay", "wire"];

/// A worker's claim of a call. The call may be lost without the worker's knowledge.
#[derive(Clone, Debug)]
struct WorkerClaim {
    call_id: String,
    tool: String,
    token: i64,
    ran: bool,
}

/// The knowledge of all callers.
#[derive(Debug, Default)]
pub(super) struct SimClients {
    sessions: usize,
    calls: usize,
    asked: usize,
    handoffs: Vec<String>,
    holds: Vec<WorkerClaim>,
    /// The effects that workers ran.
    pub(super) effects: Effects,
}

impl SimClients {
    /// The initial requests.
    pub(super) fn begin(&mut self) -> Vec<SimRequest> {
        let tools = [
            json!({"name": "look", "effect": "idempotent",
                "retry": {"max_attempts": 4, "backoff_ms": 800}}),
            json!({"name": "pay", "effect": "at_most_once"}),
            json!({"name": "wire", "effect": "at_most_once", "needs_approval": true,
                "approval": {"expires_after_ms": 30_000}}),
        ];
        let mut asks: Vec<SimRequest> =
            tools.into_iter().map(|args| self.single_call("app", "register_tool", args)).collect();
        for _ in 0..2 {
            asks.push(self.create_session());
        }
        asks
    }

    /// The next request of a random caller.
    pub(super) fn next_request(&mut self, random: &mut Random) -> SimRequest {
        let ask = self.random_request(random);
        // Sometimes a tenant sends it, even if it does not own the rows.
        let whose = ask.calls.iter().all(|call| !call.reducer.ends_with("_policy"));
        if whose && matches!(ask.caller, "app" | "agent") && random.one_in(4) {
            return SimRequest { caller: random.pick::<&'static str>(&visibility::TENANTS), ..ask };
        }
        ask
    }

    fn random_request(&mut self, random: &mut Random) -> SimRequest {
        match random.below(20) {
            0 => self.create_session(),
            1..=4 => self.append_message(random),
            5 => {
                let count = 2 + random.below(3);
                let calls =
                    (0..count).map(|_| self.append_message(random).calls.remove(0)).collect();
                self.new_request("app", calls)
            }
            6..=8 => self.request_tool_call(random),
            9..=11 => self.claim(random),
            12..=15 => self.work(random),
            16 => self.decide(random),
            17 => self.handoff(random),
            18 => self.settle_call(random),
            _ => self.rare_request(random),
        }
    }

    /// Handles the first response to a request.
    pub(super) fn receive(&mut self, ask: &SimRequest, result: &JsonValue) {
        let reducer = ask.calls[0].reducer.as_str();
        if reducer == "request_supervisor_handoff"
            && let Some(id) = result["id"].as_str()
        {
            self.handoffs.push(id.to_owned());
        }
        let call_id = result["call_id"].as_str();
        let token = result["fencing_token"].as_i64();
        if reducer.starts_with("claim_")
            && let (Some(call_id), Some(token)) = (call_id, token)
        {
            let tool = result["tool_name"].as_str().unwrap_or_default().to_owned();
            self.holds.push(WorkerClaim { call_id: call_id.to_owned(), tool, token, ran: false });
        }
    }

    fn create_session(&mut self) -> SimRequest {
        let id = format!("s{}", self.sessions);
        self.sessions += 1;
        let scope = visibility::scope(self.sessions - 1);
        self.single_call(
            "app",
            "create_session",
            json!({"agent": "support", "id": id, "scope": scope}),
        )
    }

    fn pick_session(&self, random: &mut Random) -> String {
        // Usually the first session, which the subscribers watch.
        if random.one_in(2) { "s0".to_owned() } else { format!("s{}", random.below(self.sessions)) }
    }

    fn append_message(&mut self, random: &mut Random) -> SimRequest {
        let long = if random.one_in(6) { 3_000 } else { 20 };
        let args = json!({"session_id": self.pick_session(random), "role": "user",
            "content": "m".repeat(random.below(long))});
        self.single_call("app", "append_message", args)
    }

    fn request_tool_call(&mut self, random: &mut Random) -> SimRequest {
        let call_id = format!("c{}", self.calls);
        self.calls += 1;
        let args = json!({"call_id": call_id, "session_id": self.pick_session(random),
            "tool_name": random.pick(&TOOLS), "arguments": {"n": self.calls}});
        self.single_call("agent", "request_tool_call", args)
    }

    fn pick_call(&self, random: &mut Random) -> String {
        let latest = self.calls.saturating_sub(6);
        format!("c{}", latest + random.below((self.calls - latest).max(1)))
    }

    fn claim(&mut self, random: &mut Random) -> SimRequest {
        let lease_ms = *random.pick(&[500, 5_000, 60_000]);
        if random.one_in(2) {
            let args = json!({"tools": TOOLS, "lease_ms": lease_ms});
            return self.single_call("worker", "claim_next_tool_call", args);
        }
        let args = json!({"call_id": self.pick_call(random), "lease_ms": lease_ms});
        self.single_call("worker", "claim_tool_call", args)
    }

    /// A worker with a claimed call: it runs the effect, reports, sends a heartbeat, fails, or
    /// crashes.
    fn work(&mut self, random: &mut Random) -> SimRequest {
        if self.holds.is_empty() {
            return self.claim(random);
        }
        let at = random.below(self.holds.len());
        if !self.holds[at].ran && random.below(3) > 0 {
            let hold = &mut self.holds[at];
            hold.ran = true;
            self.effects.note_run(&hold.call_id, hold.tool != "look");
        }
        if random.one_in(6) {
            let WorkerClaim { call_id, token, .. } = self.holds[at].clone();
            let args = json!({"call_id": call_id, "fencing_token": token, "lease_ms": 5_000});
            return self.single_call("worker", "heartbeat_tool_call", args);
        }
        let WorkerClaim { call_id, token, ran, .. } = self.holds.swap_remove(at);
        if random.one_in(5) {
            return self.append_message(random); // It crashed; another client sends a message.
        }
        if ran {
            let args = json!({"call_id": call_id, "fencing_token": token, "result": {"by": token}});
            return self.single_call("worker", "complete_tool_call", args);
        }
        let args = json!({"call_id": call_id, "fencing_token": token, "error": "no line",
            "retryable": true});
        self.single_call("worker", "fail_tool_call", args)
    }

    fn decide(&mut self, random: &mut Random) -> SimRequest {
        let decision = *random.pick(&["approve", "approve", "reject"]);
        let args = json!({"call_id": self.pick_call(random), "decision": decision});
        self.single_call("supervisor", "decide_approval", args)
    }

    fn handoff(&mut self, random: &mut Random) -> SimRequest {
        let Some(id) = self.handoffs.last().cloned().filter(|_| random.below(3) > 0) else {
            let args = json!({"session_id": self.pick_session(random), "reason": "over the limit",
                "required_capability": "refunds", "expires_after_ms": 20_000});
            return self.single_call("agent", "request_supervisor_handoff", args);
        };
        match random.below(3) {
            0 => self.single_call(
                "supervisor",
                "claim_handoff",
                json!({"id": id, "lease_ms": 5_000}),
            ),
            1 => self.single_call("supervisor", "release_handoff", json!({"id": id})),
            _ => {
                self.handoffs.pop();
                let args = json!({"id": id, "resolution": "approved"});
                self.single_call("supervisor", "resolve_handoff", args)
            }
        }
    }

    fn settle_call(&mut self, random: &mut Random) -> SimRequest {
        let args = json!({"call_id": self.pick_call(random), "outcome": "failed"});
        self.single_call("auditor", "settle_tool_call", args)
    }

    fn rare_request(&mut self, random: &mut Random) -> SimRequest {
        let session_id = self.pick_session(random);
        match random.below(6) {
            5 => self.change_policy(random),
            0 => {
                let args = json!({"in_ms": random.below(20_000), "session_id": session_id,
                    "message": "now"});
                self.single_call("app", "set_timer", args)
            }
            1 => self.single_call("app", "suspend_session", json!({"session_id": session_id})),
            2 => self.single_call("app", "resume_session", json!({"session_id": session_id})),
            3 => self.single_call(
                "app",
                "cancel_tool_call",
                json!({"call_id": self.pick_call(random)}),
            ),
            _ => {
                // A batch that is refused in the middle.
                let mut calls = self.append_message(random).calls;
                let reducer = "suspend_session".to_owned();
                calls.push(BatchCall { reducer, args: json!({"session_id": "s_nobody"}) });
                self.new_request("app", calls)
            }
        }
    }

    /// Narrows or widens a tenant's visibility of messages.
    fn change_policy(&mut self, random: &mut Random) -> SimRequest {
        let name = *random.pick(&["short", "long"]);
        let args = json!({"table": "agent_state", "role": "app", "name": name});
        if random.one_in(2) {
            return self.single_call("app", "drop_policy", args);
        }
        let condition =
            if name == "short" { "length(content) < 12" } else { "length(content) > 9" };
        let args = json!({"table": "agent_state", "role": "app", "name": name,
            "condition": condition});
        self.single_call("app", "set_policy", args)
    }

    fn single_call(&mut self, caller: &'static str, reducer: &str, args: JsonValue) -> SimRequest {
        self.new_request(caller, vec![BatchCall { reducer: reducer.to_owned(), args }])
    }

    fn new_request(&mut self, caller: &'static str, calls: Vec<BatchCall>) -> SimRequest {
        self.asked += 1;
        SimRequest { caller, calls, request_id: format!("r{}", self.asked) }
    }
}
