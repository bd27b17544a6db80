//! Prompts: versions that never change, labels that move, and scopes.

use abide_schema::limits;
use expect_test::expect;

use crate::{check, play};

/// The cases of `costs.rs`.
pub(crate) const COSTS: &str = r#"
# put_prompt
put_prompt {"name":"greeting","text":"new","labels":["l1","new"]}
# label_prompt
label_prompt {"name":"greeting","label":"new","version":1}
# unlabel_prompt
unlabel_prompt {"name":"greeting","label":"l"}
"#;

#[test]
fn each_new_text_is_a_version_and_labels_move() {
    check(
        r#"
        put_prompt name=greeting text="Hello." labels=["staging"]
        put_prompt name=greeting text="Hello."
        put_prompt name=greeting text="Hello {{name}} of {{ firm }}, {{name}}." description="Greets"
        put_prompt name=greeting text="Hello {{name}} of {{ firm }}, {{name}}." labels=["production","staging"]
        put_prompt name=greeting text="Hi." expected_version=1
        put_prompt name=greeting text="Hi." expected_version=2
        put_prompt name=other text="Hi." expected_version=1
        label_prompt name=greeting label=production version=1
        label_prompt name=greeting label=production version=1
        unlabel_prompt name=greeting label=staging
        unlabel_prompt name=greeting label=staging
        sql SELECT prompt, version, text, variables FROM prompt_versions ORDER BY version
        sql SELECT prompt, label, version FROM prompt_labels
        sql SELECT name, version, description, seq FROM prompts
        raw UPDATE prompt_versions SET text = 'forged' WHERE version = 1
        replay
        "#,
        expect![[r#"
            seq 1 {name: greeting, version: 1}
            seq 1 again {name: greeting, version: 1}
            seq 2 {name: greeting, version: 2}
            seq 3 {name: greeting, version: 2}
            refused conflict: prompt greeting is at version 2, not 1 (hint: read it again and retry the change)
            seq 4 {name: greeting, version: 3}
            refused conflict: prompt other is at version 0, not 1 (hint: read it again and retry the change)
            seq 5 {version: 1, prompt: greeting}
            seq 5 again {version: 1, prompt: greeting}
            seq 6 {version: 2, prompt: greeting}
            refused not_found: prompt greeting has no label staging (hint: `abide prompt show greeting` lists its labels)
            ("greeting", 1, "Hello.", "[]") ("greeting", 2, "Hello {{name}} of {{ firm }}, {{name}}.", "[\"name\",\"firm\"]") ("greeting", 3, "Hi.", "[]")
            ("greeting", "production", 1)
            ("greeting", 3, "Greets", 6)
            aborted: conflict: a version of a prompt cannot be changed
            the same up to 6
        "#]],
    );
}

#[test]
fn wrong_prompts_are_refused() {
    check(
        r#"
        put_prompt name=a@1 text=x
        put_prompt name="a b" text=x
        put_prompt name="" text=x
        put_prompt name=tenant=acme/a text=x
        put_prompt name=a text="  "
        put_prompt name=a text=x labels=["v3"]
        put_prompt name=a text=x labels=["latest"]
        put_prompt name=a text=x
        label_prompt name=b label=production version=1
        label_prompt name=a label=production version=2
        label_prompt name=a label=production version=0
        unlabel_prompt name=a label=production
        "#,
        expect![[r#"
            refused bad_arguments: name "a@1" is not valid (hint: letters, digits, . _ - and / are allowed)
            refused bad_arguments: name "a b" is not valid (hint: letters, digits, . _ - and / are allowed)
            refused bad_arguments: name is empty
            refused bad_arguments: name "tenant=acme/a" is not valid (hint: letters, digits, . _ - and / are allowed)
            refused bad_arguments: text is empty (hint: give the text of the prompt)
            refused bad_arguments: label "v3" is not valid (hint: a label begins with a letter, has letters, digits, . _ and -, at most 64 bytes, and is neither latest nor a number such as v3)
            refused bad_arguments: label "latest" is not valid (hint: a label begins with a letter, has letters, digits, . _ and -, at most 64 bytes, and is neither latest nor a number such as v3)
            seq 1 {name: a, version: 1}
            refused not_found: there is no prompt b (hint: `abide prompt list` lists them)
            refused not_found: prompt a has no version 2 (hint: its newest version is 1)
            refused not_found: prompt a has no version 0 (hint: its newest version is 1)
            refused not_found: prompt a has no label production (hint: `abide prompt show a` lists its labels)
        "#]],
    );
}

#[test]
fn prompts_are_bounded() {
    let long = "x".repeat(limits::PROMPT_BYTES + 1);
    let many: String = (0..=limits::PROMPT_VARIABLES).map(|n| format!("x{{{{v{n}}}}}")).collect();
    let labels: Vec<String> = (0..=limits::PROMPT_LABELS).map(|n| format!("\"l{n}\"")).collect();
    let labels = labels.join(",");
    let answers = play(&format!(
        "put_prompt name=a text={long}
        put_prompt name=a text={many}
        put_prompt name=a text=x labels=[{labels}]
        put_prompt name=a text=x description={description}
        sql SELECT count(*) FROM prompts",
        description = "x".repeat(limits::PROMPT_DESCRIPTION_BYTES + 1),
    ));
    expect![[r#"
        refused limit_exceeded: text has 1048577 bytes; the limit is 1048576 (hint: shorten it, or move parts into skills)
        refused limit_exceeded: text has 101 variables; the limit is 100 (hint: combine some variables into one)
        refused limit_exceeded: prompt a would have 51 labels; the limit is 50 (hint: remove one with `abide prompt unlabel`)
        refused limit_exceeded: description has 1025 bytes; the limit is 1024 (hint: shorten the description)
        (0)
    "#]].assert_eq(&answers);
}

/// A tenant has prompts of its own, of any name, and sees neither those of the operator nor those of another tenant.
#[test]
fn a_tenant_has_prompts_of_its_own() {
    check(
        r#"
        who ann app tenant=acme
        who bob app tenant=zeta
        put_prompt name=greeting text="Of all." labels=["production"]
        put_prompt as=ann name=greeting text="Of acme." labels=["production"]
        put_prompt as=bob name=greeting text="Of zeta."
        put_prompt as=bob name=tenant=acme/greeting text="Forged."
        put_prompt as=ann name=greeting text="Of acme, again."
        label_prompt as=bob name=tenant=acme/greeting label=production version=2
        unlabel_prompt as=ann name=greeting label=production
        put_prompt as=ann name=mine text="x" scope={"tenant":"zeta"}
        put_prompt as=ann name=mine text="x" scope={"user":"ann"}
        sql SELECT name, version, scope FROM prompts ORDER BY name
        sql SELECT prompt, label, version FROM prompt_labels
        replay
        "#,
        expect![[r#"
            seq 1 {name: greeting, version: 1}
            seq 2 {name: tenant=acme/greeting, version: 1, scope: {"tenant":"acme"}}
            seq 3 {name: tenant=zeta/greeting, version: 1, scope: {"tenant":"zeta"}}
            refused bad_arguments: name "tenant=acme/greeting" is not valid (hint: letters, digits, . _ - and / are allowed)
            seq 4 {name: tenant=acme/greeting, version: 2, scope: {"tenant":"acme"}}
            refused not_found: there is no prompt tenant=acme/greeting (hint: `abide prompt list` lists them)
            seq 5 {version: 1, prompt: tenant=acme/greeting}
            refused denied: scope.tenant is outside the caller's own scope (hint: omit tenant; it is filled in)
            seq 7 {name: tenant=acme/mine, version: 1, scope: {"tenant":"acme","user":"ann"}}
            ("greeting", 1, "{}") ("tenant=acme/greeting", 2, "{\"tenant\":\"acme\"}") ("tenant=acme/mine", 1, "{\"tenant\":\"acme\",\"user\":\"ann\"}") ("tenant=zeta/greeting", 1, "{\"tenant\":\"zeta\"}")
            ("greeting", "production", 1)
            the same up to 7
        "#]],
    );
}

/// Regression: an equal text added no version, so a caller that may not read the text could confirm a guess of it.
#[test]
fn a_guess_of_a_hidden_text_is_not_confirmed() {
    let received = play(
        r#"
        put_prompt name=pin text="1234"
        set_policy table=prompt_versions role=app hidden=["text"]
        who eve app
        put_prompt name=pin text="1234" as=eve
        put_prompt name=pin text="1234" as=eve
        put_prompt name=pin text="1234"
        replay
        "#,
    );
    let lines: Vec<String> = received
        .lines()
        .filter(|&line| line.contains("name: pin"))
        .map(|line| line.to_owned())
        .collect();
    let seen: Vec<&str> = lines
        .iter()
        .filter_map(|line| line.split("version: ").nth(1)?.split([',', '}']).next())
        .collect();
    assert_eq!(seen, ["1", "2", "3", "3"], "{received}");
}
