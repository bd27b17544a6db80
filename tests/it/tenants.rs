//! Two tenants in one file against one alone: what a tenant is answered does not depend on whether the
//! other is there. Random calls, also at the other's ids; the oracle is the same engine without the
//! other's calls.
//!
//! What all share is left out of the comparison, as `docs/authority.md` says: the log's numbers, and
//! those of messages. Ids are made by each tenant from names of its own.

use std::collections::HashMap;

use abide_schema::Caller;
use serde_json::{Map, Value as JsonValue, json};

use crate::traffic::{Random, for_seeds};
use crate::world::{World, run};

enum Step {
    /// A call of tenant `a` or `b`.
    Call(char, &'static str, JsonValue),
    PassMs(i64),
}

const TOOLS: [&str; 3] = ["look", "refund", "wire"];

/// A name that a tenant made, or may have: mostly the caller's own, sometimes the other's.
fn name(random: &mut Random, by: char, what: &str) -> String {
    let of = match random.one_in(4) {
        true if by == 'a' => 'b',
        true => 'a',
        false => by,
    };
    format!("{what}-{of}{}", random.below(6))
}

fn step(random: &mut Random) -> Step {
    if random.one_in(12) {
        return Step::PassMs(1 + random.below(9_000) as i64);
    }
    let by = if random.one_in(2) { 'a' } else { 'b' };
    let own = |random: &mut Random, what: &str| format!("{what}-{by}{}", random.below(6));
    let session = name(random, by, "s");
    let call = name(random, by, "c");
    let tool = *random.pick(&TOOLS);
    let lease_ms = 1_000 + random.below(4_000);
    let (reducer, args) = match random.below(20) {
        0 | 1 => ("create_session", json!({"agent": "x", "id": own(random, "s")})),
        2 => {
            let id = own(random, "s");
            ("create_session", json!({"agent": "x", "id": id, "parent_id": session}))
        }
        3 | 4 => {
            ("append_message", json!({"session_id": session, "role": "user", "content": "hi"}))
        }
        5 => ("suspend_session", json!({"session_id": session})),
        6 => ("resume_session", json!({"session_id": session})),
        7 if random.one_in(8) => ("cancel_session", json!({"session_id": session})),
        8 if random.one_in(8) => ("complete_session", json!({"session_id": session})),
        9..=11 => {
            let args = json!({"call_id": own(random, "c"), "session_id": session,
                "tool_name": tool, "arguments": {"n": 1}});
            ("request_tool_call", args)
        }
        12 => ("claim_tool_call", json!({"call_id": call, "lease_ms": lease_ms})),
        13 | 14 => ("claim_next_tool_call", json!({"tools": TOOLS, "lease_ms": lease_ms})),
        15 | 16 => ("complete_tool_call", json!({"call_id": call, "result": 1})),
        17 => ("decide_approval", json!({"call_id": call, "decision": "approve"})),
        18 => {
            let args = json!({"id": own(random, "t"), "in_ms": lease_ms, "session_id": session,
                "message": "time"});
            ("set_timer", args)
        }
        7 | 8 => ("append_message", json!({"session_id": session, "role": "x", "content": null})),
        _ => ("settle_tool_call", json!({"call_id": call, "outcome": "failed"})),
    };
    Step::Call(by, reducer, args)
}

/// Plays the calls of these tenants; what `a` is answered.
async fn play(steps: &[Step], tenants: &str) -> Vec<String> {
    let world = World::new();
    for (name, more) in [
        ("look", json!({"effect": "read_only"})),
        ("refund", json!({"effect": "at_most_once"})),
        ("wire", json!({"effect": "idempotent", "needs_approval": true})),
    ] {
        let mut args = json!({"name": name});
        args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        world.call("register_tool", args).await.unwrap();
    }
    let (mut heard, mut tokens) = (Vec::new(), HashMap::new());
    for step in steps {
        let (by, reducer, mut args) = match step {
            Step::PassMs(ms) => {
                world.pass_ms(*ms).await;
                continue;
            }
            Step::Call(by, ..) if !tenants.contains(*by) => continue,
            Step::Call(by, reducer, args) => (*by, *reducer, args.clone()),
        };
        let caller = caller(by);
        if reducer == "complete_tool_call" {
            let known = tokens.get(args["call_id"].as_str().unwrap());
            args["fencing_token"] = known.cloned().unwrap_or_else(|| json!(1));
        }
        let done = world.engine().call(&caller, reducer, &args, None).await;
        let answer = match done {
            Ok(done) => {
                let result: JsonValue = serde_json::from_str(&done.result).unwrap();
                if let (Some(id), token @ JsonValue::Number(_)) =
                    (result["call_id"].as_str(), &result["fencing_token"])
                {
                    tokens.insert(id.to_owned(), token.clone());
                }
                format!("{} {}", done.duplicate, without_numbers(result))
            }
            Err(refusal) => format!("{}: {} {:?}", refusal.code, refusal.detail, refusal.hint),
        };
        if by == 'a' {
            heard.push(format!("{reducer} {args} → {}", without_made_ids(&answer)));
        }
    }
    heard.iter().map(|line| without_tokens(line)).collect()
}

fn caller(by: char) -> Caller {
    let scope = [("tenant".to_owned(), by.to_string())];
    Caller::with(by.to_string(), "app", ["*".to_owned()].into(), scope.into())
}

/// Without what the log numbers.
fn without_numbers(result: JsonValue) -> JsonValue {
    let JsonValue::Object(row) = result else { return result };
    let numbers = ["seq", "created_seq", "fencing_token"];
    let is_number = |name: &str, value: &JsonValue| {
        numbers.contains(&name) || (name == "id" && value.is_number())
    };
    row.into_iter().filter(|(name, value)| !is_number(name, value)).collect::<Map<_, _>>().into()
}

/// With the same word for every id that the engine made.
fn without_made_ids(text: &str) -> String {
    let words = text.split_inclusive(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.map(|word| if word.starts_with("ap_") { "ap " } else { word }).collect()
}

/// The tokens that a call was made with are the log's numbers too.
fn without_tokens(line: &str) -> String {
    let Some((before, after)) = line.split_once("\"fencing_token\":") else {
        return line.to_owned();
    };
    let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
    format!("{before}\"fencing_token\":_{rest}")
}

#[test]
fn a_tenant_cannot_tell_whether_another_is_there() {
    for_seeds("a_tenant_cannot_tell_whether_another_is_there", 0..25, |seed| {
        let mut random = Random::new(seed);
        let steps: Vec<Step> = (0..400).map(|_| step(&mut random)).collect();
        let (alone, beside) = run(async { (play(&steps, "a").await, play(&steps, "ab").await) });
        assert_eq!(alone.len(), beside.len());
        for (at, (alone, beside)) in alone.iter().zip(&beside).enumerate() {
            assert_eq!(alone, beside, "answer {at}");
        }
        let done = alone.iter().filter(|line| line.contains("→ false")).count();
        assert!(done > 20, "only {done} calls of {} did anything", alone.len());
    });
}
