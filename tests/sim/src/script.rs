//! A fixed script of one simulated hour: every reducer at least once, including those called by
//! timers, batches, calls that share a transaction, large rows, pruning, checkpoints and WAL
//! resets.

use std::fs;

use abide_schema::wire::BatchCall;
use abide_schema::{Code, Refusal, limits};
use serde_json::{Value as JsonValue, json};

use crate::history::History;
use crate::rig::{Rig, STRANGER, SimReply, SimRequest};

/// The bytes of a page and its header in the WAL.
const FRAME_BYTES: u64 = 4_096 + 24;

/// The engine accepts no more calls: the disk or the power failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineStopped;

type ScriptResult<T = ()> = Result<T, EngineStopped>;

/// Runs the script on a rig, and records the responses.
#[derive(Debug)]
pub struct ScriptRun<'a> {
    rig: &'a Rig,
    /// The responses so far.
    pub history: History,
    /// Whether to stop at the first call that is refused for lack of space.
    pub gives_up: bool,
    asked: usize,
}

impl ScriptRun<'_> {
    /// A player with an empty history.
    #[must_use]
    pub fn new(rig: &Rig) -> ScriptRun<'_> {
        ScriptRun { rig, history: History::default(), gives_up: false, asked: 0 }
    }

    /// Runs the whole script, or until the engine accepts no more calls.
    ///
    /// # Errors
    /// [`EngineStopped`].
    pub fn play(&mut self) -> ScriptResult {
        self.sessions()?;
        self.tools()?;
        self.workers()?;
        self.exchanges()?;
        self.decisions()?;
        self.handoffs()?;
        self.authority()?;
        self.moments()?;
        self.runs()?;
        self.collections()?;
        self.crowd()?;
        self.end_sessions()
    }

    /// Sends messages until the WAL has at least this many frames.
    ///
    /// # Panics
    /// The engine refuses a message.
    pub fn fill(&mut self, frames: u64) {
        let args = json!({"agent": "support", "id": "talk"});
        self.call("app", "create_session", args).expect("nothing goes wrong yet");
        let wal = self.rig.path.with_extension("db-wal");
        let written = || fs::metadata(&wal).map_or(0, |wal| wal.len() / FRAME_BYTES);
        while written() < frames {
            // Large while there is space: such a message fills about sixty frames.
            let large = written() + 100 < frames;
            let content = if large { "m".repeat(100_000) } else { "m".to_owned() };
            self.append_message("talk", &content).expect("nothing goes wrong yet");
            self.commit_rows().expect("nothing goes wrong yet");
        }
    }

    fn sessions(&mut self) -> ScriptResult {
        for id in ["s1", "s2", "s3", "s4"] {
            let args = json!({"agent": "support", "id": id, "scope": {"tenant": "t1"}});
            self.call("app", "create_session", args)?;
        }
        for nth in 0..6 {
            self.append_message("s1", &format!("{nth} {}", "word ".repeat(40 * nth)))?;
        }
        self.append_message("s2", "hello")?;
        self.call("app", "suspend_session", json!({"session_id": "s2", "reason": "later"}))?;
        self.call("app", "resume_session", json!({"session_id": "s2"}))?;
        let patch = json!({"session_id": "s2", "title": "New", "metadata": {"a": 1}});
        self.call("app", "update_session", patch)?;
        self.checkpoint();
        Ok(())
    }

    fn tools(&mut self) -> ScriptResult {
        for (name, effect) in [("look", "read_only"), ("pay", "at_most_once")] {
            let args = json!({"name": name, "effect": effect,
                "retry": {"max_attempts": 3, "backoff_ms": 500}});
            self.call("app", "register_tool", args)?;
        }
        let approval = json!({"expires_after_ms": 60_000});
        let args = json!({"name": "wire", "needs_approval": true, "approval": approval});
        self.call("app", "register_tool", args)?;
        for (call_id, tool) in [("c1", "look"), ("c2", "pay"), ("c3", "look"), ("c4", "pay")] {
            self.request_tool_call(call_id, tool)?;
        }
        self.request_tool_call("c5", "wire")?;
        self.request_tool_call("c6", "wire")?;
        self.request_tool_call("c7", "wire").map(drop)
    }

    fn workers(&mut self) -> ScriptResult {
        let token = self.claim("c1")?;
        let beat = json!({"call_id": "c1", "fencing_token": token, "lease_ms": 20_000});
        self.call("worker", "heartbeat_tool_call", beat)?;
        let failed = json!({"call_id": "c1", "fencing_token": token, "error": "no line",
            "retryable": true});
        self.call("worker", "fail_tool_call", failed)?;
        let args = json!({"tools": ["look"], "lease_ms": 10_000});
        let next = self.call("worker", "claim_next_tool_call", args)?;
        let done = json!({"call_id": next["call_id"], "fencing_token": next["fencing_token"],
            "result": {"found": "x".repeat(3_000)}});
        self.call("worker", "complete_tool_call", done)?;
        // Twice: the second retry delay ends by a timer.
        let token = self.claim("c3")?;
        let failed = json!({"call_id": "c3", "fencing_token": token, "error": "again",
            "retryable": true});
        self.call("worker", "fail_tool_call", failed)?;
        let token = self.claim("c3")?;
        let failed = json!({"call_id": "c3", "fencing_token": token, "error": "and again",
            "retryable": true});
        self.call("worker", "fail_tool_call", failed)?;
        self.pass_ms(700)?;
        // Its worker crashes: the call is unknown until it is settled.
        self.claim("c2")?;
        self.pass_ms(30_000)?;
        self.checkpoint();
        let settled = json!({"call_id": "c2", "outcome": "succeeded", "evidence": "a statement"});
        self.call("auditor", "settle_tool_call", settled)?;
        let token = self.claim("c4")?;
        self.call("app", "cancel_tool_call", json!({"call_id": "c4"}))?;
        let stopped = json!({"call_id": "c4", "fencing_token": token});
        self.call("worker", "acknowledge_cancel", stopped).map(drop)
    }

    /// A server asks during a call, and then makes a task of it that outlives a worker.
    fn exchanges(&mut self) -> ScriptResult {
        self.call("app", "register_tool", json!({"name": "tool_input"}))?;
        self.request_tool_call("c8", "pay")?;
        let token = self.claim("c8")?;
        let form = json!({"type": "object", "properties": {"to": {"type": "string"}}});
        let asked = json!({"kind": "asked", "data": {"state": "x".repeat(3_000)}});
        let ask = json!({"call_id": "c8", "fencing_token": token, "entries": [asked],
            "inputs": [{"message": "Where to?", "schema": form}, {"message": "When?"}]});
        self.call("worker", "suspend_tool_call", ask)?;
        let answer = json!({"call_id": "c8~input.1.1", "decision": "approve",
            "approved_arguments": {"answer": {"to": "Vienna"}}});
        self.call("supervisor", "decide_approval", answer)?;
        self.checkpoint();
        let declined = json!({"call_id": "c8~input.1.2", "decision": "reject"});
        self.call("supervisor", "decide_approval", declined)?;
        let token = self.claim("c8")?;
        let begun = json!([{"kind": "answered", "data": {}}, {"kind": "task", "data": {"id": 7}}]);
        let record = json!({"call_id": "c8", "fencing_token": token, "entries": begun});
        self.call("worker", "record_exchange", record)?;
        // Its worker crashes, and another one continues.
        self.pass_ms(31_000)?;
        let token = self.claim("c8")?;
        let later = json!({"call_id": "c8", "fencing_token": token, "retry_ms": 500});
        self.call("worker", "suspend_tool_call", later)?;
        self.pass_ms(700)?;
        let token = self.claim("c8")?;
        let close = json!({"call_id": "c8", "fencing_token": token});
        self.call("worker", "close_exchange", close)?;
        let done = json!({"call_id": "c8", "fencing_token": token, "result": "sent"});
        self.call("worker", "complete_tool_call", done).map(drop)
    }

    fn decisions(&mut self) -> ScriptResult {
        let approved = json!({"call_id": "c5", "decision": "approve"});
        self.call("supervisor", "decide_approval", approved)?;
        let rejected = json!({"call_id": "c6", "decision": "reject", "comment": "too much"});
        self.call("supervisor", "decide_approval", rejected)?;
        // The third approval expires.
        self.pass_ms(61_000)
    }

    fn handoffs(&mut self) -> ScriptResult {
        let first = self.handoff(json!({}))?;
        self.call("supervisor", "claim_handoff", json!({"id": first}))?;
        let beat = json!({"id": first, "lease_ms": 5_000});
        self.call("supervisor", "heartbeat_handoff", beat)?;
        self.call("supervisor", "release_handoff", json!({"id": first}))?;
        self.call("supervisor", "claim_handoff", json!({"id": first, "lease_ms": 1_000}))?;
        self.pass_ms(1_500)?;
        self.call("supervisor", "claim_handoff", json!({"id": first}))?;
        let resolved = json!({"id": first, "resolution": "approved"});
        self.call("supervisor", "resolve_handoff", resolved)?;
        let second = self.handoff(json!({"escalate_after_ms": 1_000}))?;
        self.pass_ms(1_500)?;
        self.call("supervisor", "claim_handoff", json!({"id": second}))?;
        self.call("supervisor", "reject_handoff", json!({"id": second, "reason": "no"}))?;
        self.handoff(json!({"expires_after_ms": 2_000}))?;
        self.pass_ms(2_500)?;
        self.checkpoint();
        Ok(())
    }

    /// Identities, roles and a denied caller.
    fn authority(&mut self) -> ScriptResult {
        let clerks = json!({"name": "clerks", "reducers": ["append_message"]});
        self.call("app", "set_role", clerks)?;
        self.call("app", "create_identity", json!({"id": "ann", "role": "clerks"}))?;
        self.call("app", "change_identity", json!({"id": "ann", "role": "worker"}))?;
        self.call("app", "disable_identity", json!({"id": "ann", "reason": "away"}))?;
        self.call("app", "enable_identity", json!({"id": "ann"}))?;
        let token = json!({"id": "annannann", "identity_id": "ann", "last_four": "abcd",
            "hash": "a".repeat(64)});
        self.call("app", "create_token", token)?;
        self.call("app", "revoke_token", json!({"id": "annannann"}))?;
        self.call("app", "remove_role", json!({"name": "clerks"}))?;
        let policy =
            json!({"table": "sessions", "role": "worker", "condition": "agent = 'support'"});
        self.call("app", "set_policy", policy)?;
        self.call("app", "drop_policy", json!({"table": "sessions", "role": "worker"}))?;
        // A denial, which is recorded.
        self.call(STRANGER, "create_session", json!({"agent": "support"}))?;
        // A new session; the second call only finds it.
        self.call("app", "open_session", json!({"agent": "support", "id": "found"}))?;
        self.call("app", "open_session", json!({"agent": "support", "id": "found"})).map(drop)
    }

    fn moments(&mut self) -> ScriptResult {
        let args = json!({"id": "t1", "in_ms": 1_000, "session_id": "s2", "message": "now"});
        self.call("app", "set_timer", args)?;
        self.call("app", "set_timer", json!({"id": "t2", "in_ms": 9_000}))?;
        self.call("app", "cancel_timer", json!({"id": "t2"}))?;
        self.pass_ms(2_000)
    }

    /// Runs: driven, abandoned by the driver, taken over, suspended, completed; one that is aborted; and
    /// two that wait beyond a time limit: their own, and that of an agent that has taken over.
    fn runs(&mut self) -> ScriptResult {
        let agent = json!({"name": "support", "mode": "all",
            "definition": {"system_prompt": "be kind", "limits": {"tokens": 1_000}}});
        self.call("app", "register_agent", agent)?;
        let run = json!({"session_id": "s2", "id": "run1", "input": "where is it?"});
        self.call("app", "start_run", run)?;
        let claim = json!({"id": "run1", "driver": "one", "lease_ms": 1_000});
        let token = token(&self.call("agent", "claim_run", claim)?);
        let beat = json!({"id": "run1", "fencing_token": token, "lease_ms": 1_000});
        self.call("agent", "heartbeat_run", beat)?;
        let reserve = json!({"id": "run1", "fencing_token": token, "tokens": 100});
        self.call("agent", "reserve_usage", reserve)?;
        let events = json!([{"kind": "token", "data": {"content": "z".repeat(2_000)}}]);
        let record = json!({"id": "run1", "fencing_token": token, "events": events,
            "spent": {"iteration": true, "input_tokens": 9, "output_tokens": 1}});
        self.call("agent", "record_run", record)?;
        let withheld = json!({"id": "run1", "fencing_token": token, "iteration": 1,
            "original": {"text": "it is at the depot"}});
        self.call("agent", "withhold_answer", withheld)?;
        let token = self.pause(token)?;
        let heartbeat = json!({"id": "run1", "fencing_token": token, "lease_ms": 1_000});
        self.call("agent", "heartbeat_run", heartbeat)?;
        self.health_and_memory(&token)?;
        self.summary_and_plan(&token)?;
        self.prompts()?;
        self.pass_ms(1_500)?;
        let next = json!({"driver": "two", "lease_ms": 5_000});
        let token = self::token(&self.call("agent", "claim_next_run", next)?);
        self.call("app", "suspend_session", json!({"session_id": "s2"}))?;
        let wait = json!({"id": "run1", "fencing_token": token, "interrupt": {}});
        self.call("agent", "wait_run", wait)?;
        self.call("app", "resume_session", json!({"session_id": "s2"}))?;
        let claim = json!({"id": "run1", "driver": "two", "lease_ms": 5_000});
        let token = self::token(&self.call("agent", "claim_run", claim)?);
        self.delegate(token.clone())?;
        let done = json!({"id": "run1", "fencing_token": token, "end": "done",
            "output": {"content": "on its way"}});
        self.call("agent", "finish_run", done)?;
        self.wait_too_long("run2", json!({"deadline_ms": 1_000}), json!({}))?;
        // It is in the past.
        self.wait_too_long("run4", json!({}), json!({"ends_at": 1}))?;
        self.call("app", "retire_agent", json!({"name": "support"})).map(drop)
    }

    /// A run that waits until a time limit ends it.
    fn wait_too_long(
        &mut self,
        id: &str,
        mut start: JsonValue,
        mut wait: JsonValue,
    ) -> ScriptResult {
        start["session_id"] = json!("s2");
        start["id"] = json!(id);
        self.call("app", "start_run", start)?;
        let claim = json!({"id": id, "driver": "two", "lease_ms": 5_000});
        let token = token(&self.call("agent", "claim_run", claim)?);
        self.call("app", "suspend_session", json!({"session_id": "s2"}))?;
        wait["id"] = json!(id);
        wait["fencing_token"] = token;
        wait["interrupt"] = json!({});
        self.call("agent", "wait_run", wait)?;
        self.pass_ms(1_500)?;
        self.call("app", "resume_session", json!({"session_id": "s2"})).map(drop)
    }

    /// A run is paused, copied into another session, and resumed. Returns the token of the next claim.
    fn pause(&mut self, run_token: JsonValue) -> ScriptResult<JsonValue> {
        self.call("app", "pause_run", json!({"id": "run1", "stage": "after_agent"}))?;
        let pause = json!({"id": "run1", "fencing_token": run_token, "stage": "after_agent"});
        self.call("agent", "record_pause", pause)?;
        let copy = self.call("app", "export_run", json!({"id": "run1", "copy": true}))?;
        let import = json!({"snapshot": copy, "id": "run3", "session_id": "s5"});
        self.call("app", "import_run", import)?;
        self.call("app", "abort_run", json!({"id": "run3"}))?;
        let trace = json!({"id": "run3", "trace_id": "t", "spans": 1, "status": "complete"});
        self.call("agent", "record_trace", trace)?;
        let result = json!({"status": "done", "answer": "x", "tool_calls": 1, "input_tokens": 1,
            "output_tokens": 1});
        self.call("app", "correct_run", json!({"id": "run3", "result": result, "lines": []}))?;
        self.webhooks()?;
        self.fork()?;
        self.call("app", "resume_run", json!({"id": "run1"}))?;
        let claim = json!({"id": "run1", "driver": "one", "lease_ms": 1_000});
        Ok(token(&self.call("agent", "claim_run", claim)?))
    }

    /// A short session is copied in one call, and a long one in steps.
    fn fork(&mut self) -> ScriptResult {
        self.call("app", "fork_session", json!({"session_id": "s2", "id": "s6"}))?;
        let session = json!({"agent": "support", "id": "long", "scope": {"tenant": "t1"}});
        self.call("app", "create_session", session)?;
        self.send("app", (0..limits::FORK_STEP_ROWS + 20).map(|nth| BatchCall {
            reducer: "append_message".to_owned(),
            args: json!({"session_id": "long", "role": "user", "content": format!("{nth}")}),
        }).collect())?;
        self.call("app", "fork_session", json!({"session_id": "long", "id": "s7"})).map(drop)
    }

    /// A webhook is set, fails once, is tried again when its time has come, and is deleted.
    fn webhooks(&mut self) -> ScriptResult {
        let put = json!({"run_id": "run1", "name": "w", "url": "https://hooks.example/",
            "token": "t", "after": 0});
        self.call("app", "put_webhook", put)?;
        let set_seq = self.history.acknowledged.last().map_or(0, |(_, reply)| reply.results[0].0.0);
        let failed = json!({"id": "run1~w", "set_seq": set_seq, "delivered": 1,
            "error": "no answer", "retry_in_ms": 100});
        self.call("app", "record_delivery", failed)?;
        self.pass_ms(200)?;
        self.call("app", "delete_webhook", json!({"id": "run1~w"})).map(drop)
    }

    /// The measurements of an answer, and facts: saved, changed, embedded, forgotten.
    fn health_and_memory(&mut self, token: &JsonValue) -> ScriptResult {
        let health = json!({"tokens": 900, "token_drift": 900, "messages": 3, "new_messages": 2,
            "tool_messages": 1, "over_tooling": 0.5, "context_rot": 0, "repeats": 1,
            "signals": ["token_drift"], "unhealthy": 1});
        let record = json!({"id": "run1", "fencing_token": token, "iteration": 1,
            "health": health, "action": "compact"});
        self.call("agent", "record_health", record)?;
        let facts = json!([{"key": "language", "value": "German", "confidence": 0.25},
            {"key": "city", "value": "Köln"}]);
        let save = json!({"namespace": "support", "facts": facts,
            "run_id": "run1", "fencing_token": token});
        self.call("agent", "save_memories", save)?;
        let first = self.history.acknowledged.last().map_or(0, |(_, reply)| reply.results[0].0.0);
        let facts = json!([{"key": "city", "value": "Bonn"}]);
        let saved = json!({"namespace": "support", "session_id": "s2", "facts": facts});
        self.call("app", "save_memories", saved)?;
        let vectors = json!([{"memory_id": 1, "seq": first, "vector": {"$blob": "AAAAAA=="}}]);
        self.call("agent", "embed_memories", json!({"model": "m", "vectors": vectors}))?;
        let forget = json!({"space": "support@/", "keys": ["city"]});
        self.call("app", "forget_memories", forget).map(drop)
    }

    /// The first message is summarised, and a plan has two versions.
    fn summary_and_plan(&mut self, token: &JsonValue) -> ScriptResult {
        let message = json!({"session_id": "s2", "role": "assistant", "content": "x".repeat(500)});
        let message = self.call("agent", "append_message", message)?;
        let Some(id) = message["id"].as_i64() else { return Ok(()) };
        let summary = json!({"number": 1, "through_id": id, "folded_id": id, "goal_id": id,
            "goal_folded_id": id, "summary": {"facts": ["a parcel"]}, "kept": [], "answers": 1,
            "handoffs": [], "origin": "model", "tokens_before": 200});
        let archived =
            json!([{"entry_id": id, "call_id": "c1", "tool_name": "look", "characters": 500}]);
        let record = json!({"id": "run1", "fencing_token": token, "summary": summary,
            "archived": archived});
        self.call("agent", "record_summary", record)?;
        for (version, status) in [(0, "not_started"), (1, "in_progress")] {
            let steps = json!([{"title": "look", "status": status}]);
            let plan = json!({"id": "run1", "fencing_token": token, "expected_version": version,
                "steps": steps});
            self.call("agent", "write_plan", plan)?;
        }
        Ok(())
    }

    /// A prompt with two versions, and a label that is moved and removed.
    fn prompts(&mut self) -> ScriptResult {
        for text in ["Hello.", "Hello {{name}}."] {
            let put = json!({"name": "greeting", "text": text, "labels": ["staging"]});
            self.call("app", "put_prompt", put)?;
        }
        let label = json!({"name": "greeting", "label": "staging", "version": 1});
        self.call("app", "label_prompt", label)?;
        let unlabel = json!({"name": "greeting", "label": "staging"});
        self.call("app", "unlabel_prompt", unlabel).map(drop)
    }

    /// A run delegates to another run, and ends before it.
    fn delegate(&mut self, run_token: JsonValue) -> ScriptResult {
        let wanted = json!({"call_id": "run1~1", "session_id": "s2", "tool_name": "look",
            "arguments": {}, "run_id": "run1", "run_fencing_token": run_token,
            "claim_lease_ms": 5_000});
        let token = token(&self.call("agent", "request_tool_call", wanted)?);
        let child = json!({"call_id": "run1~1", "fencing_token": token, "agent": "support",
            "input": "look for it"});
        self.call("agent", "start_child_run", child)?;
        let result = json!({"call_id": "run1~1", "fencing_token": token, "result": "later"});
        self.call("agent", "complete_tool_call", result).map(drop)
    }

    /// Several calls at once, which share a transaction; batches, all or nothing; a row of many
    /// pages.
    fn crowd(&mut self) -> ScriptResult {
        for round in 0..3 {
            let message = |nth: usize| {
                vec![append_call("s1", &format!("{round}.{nth} {}", "y".repeat(700 * nth)))]
            };
            let asks = (0..4).map(|nth| self.new_request("app", message(nth))).collect::<Vec<_>>();
            for (ask, answer) in asks.iter().zip(self.rig.put_together(&asks)) {
                self.record(ask, answer)?;
            }
            let batch = vec![
                append_call("s2", "one"),
                append_call("s2", "two"),
                append_call("s3", "three"),
            ];
            self.send("app", batch)?;
            let refused = vec![append_call("s2", "not"), append_call("s_nobody", "there")];
            self.send("app", refused)?;
        }
        self.append_message("s3", &"long ".repeat(6_000))?;
        self.checkpoint();
        Ok(())
    }

    fn collections(&mut self) -> ScriptResult {
        let scope = json!({"tenant": "t1"});
        let puts = json!([{"key": "a", "data": {"n": 1}}, {"key": "b", "blob": {"$blob": "AAEC"}}]);
        let args = json!({"collection_id": "kept", "scope": scope, "puts": puts});
        self.call("app", "write_entries", args)?;
        let puts = json!([{"key": "a", "data": "x".repeat(9_000)}]);
        let args = json!({"collection_id": "kept", "puts": puts, "deletes": ["b"]});
        self.call("app", "write_entries", args)?;
        self.call("app", "delete_entries", json!({"collection_id": "kept", "prefix": null}))
            .map(drop)
    }

    fn end_sessions(&mut self) -> ScriptResult {
        self.append_message("s4", "hello")?;
        let completed = json!({"session_id": "s1", "result": {"text": "bye"}});
        self.call("app", "complete_session", completed)?;
        let failed = json!({"session_id": "s3", "code": "boom", "message": "it fell"});
        self.call("app", "fail_session", failed)?;
        // More than one cleanup step.
        let timer = json!({"session_id": "s4", "in_ms": 3_600_000});
        let timer = BatchCall { reducer: "set_timer".to_owned(), args: timer };
        self.send("app", vec![timer; limits::CLEANUP_ROWS + 10])?;
        let child = json!({"agent": "support", "id": "s4_child", "parent_id": "s4"});
        self.call("app", "create_session", child)?;
        self.call("app", "cancel_session", json!({"session_id": "s4", "reason": "no"}))?;
        self.pass_ms(1)?;
        self.checkpoint();
        self.append_message("s2", "the last word").map(drop)
    }

    fn append_message(&mut self, session_id: &str, content: &str) -> ScriptResult<JsonValue> {
        self.send("app", vec![append_call(session_id, content)])
    }

    fn request_tool_call(&mut self, call_id: &str, tool_name: &str) -> ScriptResult<JsonValue> {
        let args = json!({"call_id": call_id, "session_id": "s1", "tool_name": tool_name,
            "arguments": {"of": call_id}});
        self.call("app", "request_tool_call", args)
    }

    fn claim(&mut self, call_id: &str) -> ScriptResult<JsonValue> {
        let args = json!({"call_id": call_id, "lease_ms": 10_000});
        let claimed = self.call("worker", "claim_tool_call", args)?;
        Ok(token(&claimed))
    }

    fn handoff(&mut self, more: JsonValue) -> ScriptResult<JsonValue> {
        let mut args = json!({"session_id": "s2", "reason": "over the limit",
            "required_capability": "refunds"});
        if let (Some(args), JsonValue::Object(more)) = (args.as_object_mut(), more) {
            args.extend(more);
        }
        let asked = self.call("app", "request_supervisor_handoff", args)?;
        Ok(if asked["id"].is_string() { asked["id"].clone() } else { "ho_nobody".into() })
    }

    fn call(
        &mut self,
        caller: &'static str,
        reducer: &str,
        args: JsonValue,
    ) -> ScriptResult<JsonValue> {
        self.send(caller, vec![BatchCall { reducer: reducer.to_owned(), args }])
    }

    fn send(&mut self, caller: &'static str, calls: Vec<BatchCall>) -> ScriptResult<JsonValue> {
        let ask = self.new_request(caller, calls);
        let answer = self.rig.run(ask.send(self.rig.engine()));
        self.record(&ask, answer)
    }

    fn new_request(&mut self, caller: &'static str, calls: Vec<BatchCall>) -> SimRequest {
        self.asked += 1;
        SimRequest { caller, calls, request_id: format!("r{}", self.asked) }
    }

    /// Records the response; returns the first result, or null.
    fn record(
        &mut self,
        ask: &SimRequest,
        answer: Result<SimReply, Refusal>,
    ) -> ScriptResult<JsonValue> {
        let refusal = match answer {
            Ok(reply) => {
                let first = serde_json::from_str(&reply.results[0].1).unwrap_or_default();
                self.history.acknowledged.push((ask.clone(), reply));
                return Ok(first);
            }
            Err(refusal) => refusal,
        };
        match refusal.code {
            Code::DiskFull | Code::Overloaded | Code::RateLimited | Code::Unavailable => {
                self.history.unwritten.push(ask.clone());
                if self.gives_up {
                    return Err(EngineStopped);
                }
            }
            Code::EngineFailed | Code::Internal => self.history.open.push(ask.clone()),
            _ => {}
        }
        if self.rig.engine().ready().is_err() { Err(EngineStopped) } else { Ok(JsonValue::Null) }
    }

    fn pass_ms(&mut self, ms: i64) -> ScriptResult {
        match self.rig.pass_ms(ms) {
            Err(_) if self.rig.engine().ready().is_err() => Err(EngineStopped),
            _ => Ok(()),
        }
    }

    /// Lets SQLite commit, and checkpoints the WAL if it is long.
    fn checkpoint(&mut self) {
        // A fault ends the script at its next call.
        let _ = self.commit_rows();
        self.rig.checkpoint();
        self.rig.settle();
    }

    /// Lets SQLite commit, as any reader does.
    fn commit_rows(&self) -> Result<(), Refusal> {
        self.rig.commit_rows()
    }
}

/// The token of a claim; an invalid one if the claim was refused.
fn token(claimed: &JsonValue) -> JsonValue {
    match &claimed["fencing_token"] {
        token if token.is_i64() => token.clone(),
        _ => 0.into(),
    }
}

fn append_call(session_id: &str, content: &str) -> BatchCall {
    let args = json!({"session_id": session_id, "role": "user", "content": content});
    BatchCall { reducer: "append_message".to_owned(), args }
}
