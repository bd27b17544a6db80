//! Text with placeholders.

use expect_test::expect;
use serde_json::{Map, Value, json};

use super::{Template, percent_encoded};

#[test]
fn placeholders_are_filled_and_double_braces_are_literal() {
    let arguments = json!({"a": "x{b}", "n": 1.5, "list": [1, "two"], "none": null});
    let arguments: Map<String, Value> = arguments.as_object().expect("it is an object").clone();
    let output: Vec<String> =
        ["{a}-{n}", "{{a}} {a}", "{list}", "{none}", "{b}", "{", "a}b", "{}", "{a{b}}"]
            .into_iter()
            .map(|text| match Template::parse(text) {
                Ok(template) => match template.fill(&arguments, str::to_owned) {
                    Ok(filled) => format!("{text} = {filled}"),
                    Err(name) => format!("{text} lacks {name}"),
                },
                Err(why) => why,
            })
            .collect();
    expect![[r#"
        {a}-{n} = x{b}-1.5
        {{a}} {a} = {a} x{b}
        {list} = [1,"two"]
        {none} lacks none
        {b} lacks b
        "{" has a { without a name: write {{ for a literal brace
        "a}b" has an unmatched }: write }} for a literal brace
        "{}" has a { without a name: write {{ for a literal brace
        "{a{b}}" has a { without a name: write {{ for a literal brace"#]]
    .assert_eq(&output.join("\n"));
}

#[test]
fn only_unreserved_characters_are_not_encoded() {
    assert_eq!(percent_encoded("a-Z_0.~/?#&=+ %ü"), "a-Z_0.~%2F%3F%23%26%3D%2B%20%25%C3%BC");
}
