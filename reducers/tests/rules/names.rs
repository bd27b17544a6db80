//! Ids and names that people compare by eye. `adm\u{200b}in` was accepted beside `admin`: the reducers refused control
//! characters only, while the terminal had a longer list of what is invisible. The class: every id and name that a caller
//! chooses, and every character that has no glyph of its own.

use std::fmt::Write as _;

use crate::play;

/// One character of each kind: controls, zero-width, joiners, bidirectional, separators, soft hyphen, fillers, variation
/// selectors, private use, tags, blanks.
const INVISIBLE: [&str; 17] = [
    "0000", "001B", "0085", "200B", "200D", "FEFF", "202E", "2069", "2028", "00AD", "3164", "2800",
    "FE0F", "E000", "E0041", "00A0", "3000",
];

/// Calls that create or name something; `X` is the id or name.
const CALLS: [&str; 38] = [
    "create_session agent=a id=X",
    "create_session agent=X",
    r#"create_session agent=a scope={"tenant":X}"#,
    r#"create_session agent=a scope={X:"acme"}"#,
    "open_session agent=a id=X",
    "open_session agent=X id=s2",
    "append_message session_id=s1 role=X content=a",
    "set_timer in_ms=1000 id=X",
    "set_timer in_ms=1000 name=X",
    "request_tool_call session_id=s1 tool_name=search call_id=X arguments={}",
    "claim_tool_call call_id=c1 worker=X",
    "claim_next_tool_call tools=[\"search\"] worker=X",
    "request_tool_call session_id=s1 tool_name=search call_id=c2 arguments={} worker=X",
    "register_tool name=X",
    "register_tool name=search required_capability=X",
    r#"register_tool name=search approval={"required_capability":X}"#,
    "register_agent name=X definition={}",
    r#"register_agent name=a definition={"allow":{"roles":[X]}}"#,
    r#"register_agent name=a definition={"allow":{"capabilities":[X]}}"#,
    r#"register_agent name=a definition={"allow":{"scopes":[{"tenant":X}]}}"#,
    "write_entries collection_id=X puts=[]",
    r#"write_entries collection_id=c kind=X puts=[{"key":"a"}]"#,
    "append_message session_id=s1 role=user kind=X content=a",
    "claim_run id=r1 driver=X lease_ms=1000",
    "claim_next_run driver=X lease_ms=1000",
    "fail_session session_id=s1 code=X message=a",
    "request_supervisor_handoff session_id=s1 reason=a required_capability=X",
    "request_supervisor_handoff session_id=s1 reason=a required_capability=a escalate_after_ms=1000 escalate_to=X",
    "embed_memories model=X vectors=[]",
    r#"save_memories namespace=support facts=[{"key":X,"value":"x"}]"#,
    "create_identity id=X role=worker",
    "create_identity id=ann role=worker capabilities=[X]",
    r#"create_identity id=ann role=worker scope={"tenant":X}"#,
    "set_role name=X reducers=[\"append_message\"]",
    "set_role name=r reducers=[\"append_message\"] capabilities=[X]",
    "start_run session_id=s1 id=X agent=a",
    "fork_session session_id=s1 id=X",
    "create_token id=abcabcabc identity_id=root hash=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa last_four=abcd label=X",
];

/// A JSON text with a character in its middle.
fn quoted(code: &str) -> String {
    let c = char::from_u32(u32::from_str_radix(code, 16).unwrap()).unwrap();
    let units = c.encode_utf16(&mut [0; 2]).iter().fold(String::new(), |mut text, unit| {
        let _ = write!(text, "\\u{unit:04x}");
        text
    });
    format!("\"adm{units}in\"")
}

#[test]
fn no_id_or_name_has_an_invisible_character() {
    let mut script = "create_session agent=support id=s1\n".to_owned();
    for call in CALLS {
        for code in INVISIBLE {
            let _ = writeln!(script, "{}", call.replace('X', &quoted(code)));
        }
    }
    script.push_str("sql SELECT count(*) FROM events");
    let output = play(&script);
    let answers: Vec<&str> = output.lines().collect();
    let calls = CALLS.iter().flat_map(|call| INVISIBLE.map(|code| (call, code)));
    assert_eq!(answers.len(), CALLS.len() * INVISIBLE.len() + 2);
    for ((call, code), answer) in calls.zip(&answers[1..]) {
        assert!(answer.starts_with("refused bad_arguments: "), "{call} {code}: {answer}");
        assert!(answer.contains(&format!("U+{code}")), "{call} {code}: {answer}");
    }
    assert_eq!(answers.last(), Some(&"(1)"), "no call had an effect");
}

/// A driver names the owners of the steps of its plan.
#[test]
fn no_owner_of_a_step_has_an_invisible_character() {
    let mut script = r#"
        create_session agent=a id=s1
        register_agent name=a definition={}
        start_run session_id=s1 id=r1 input=go
        claim_run id=r1 driver=d lease_ms=60000
        "#
    .to_owned();
    for code in INVISIBLE {
        let owner = quoted(code);
        let step = format!(r#"{{"title":"one","status":"in_progress","owner":{owner}}}"#);
        let _ =
            writeln!(script, "write_plan id=r1 fencing_token=4 expected_version=0 steps=[{step}]");
    }
    let output = play(&script);
    let refused = "refused bad_arguments: the owner of step 1 contains the character U+";
    assert_eq!(output.matches(refused).count(), INVISIBLE.len(), "{output}");
}

/// Other scripts and texts are as before.
#[test]
fn visible_ids_and_all_texts_are_accepted() {
    let script = r#"
        create_session agent="поддержка 2" id="注文-8 grüße 👩" title="a\u200bb ❤\ufe0f"
        append_message session_id="注文-8 grüße 👩" role=user content="\u202eabc 👩\u200d👧"
        set_timer in_ms=1000 session_id="注文-8 grüße 👩" id="e\u0301" message="\u200b"
        sql SELECT count(*) FROM events
        "#;
    let output = play(script);
    assert!(!output.contains("refused"), "{output}");
    assert!(output.ends_with("(3)\n"), "{output}");
}
