//! Ids and names that people compare by eye. `adm\u{200b}in` was accepted beside `admin`: the reducers refused control
//! characters only, while the terminal had a longer list of what is invisible. The class: every id and name that a caller
//! chooses, and every character that has no glyph of its own.

use std::fmt::Write as _;

use crate::script::play;

/// One character of each kind: controls, zero-width, joiners, bidirectional, separators, soft hyphen, fillers, variation
/// selectors, private use, tags, blanks.
const INVISIBLE: [&str; 17] = [
    "0000", "001B", "0085", "200B", "200D", "FEFF", "202E", "2069", "2028", "00AD", "3164", "2800",
    "FE0F", "E000", "E0041", "00A0", "3000",
];

/// Calls that create or name something; `X` is the id or name.
const CALLS: [&str; 22] = [
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
    "register_tool name=X",
    "register_agent name=X definition={}",
    "write_entries collection_id=X puts=[]",
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
