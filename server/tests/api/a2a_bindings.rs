//! The three bindings of A2A give the same result for the same request. Requests are random; those of gRPC are encoded here, apart
//! from the server's code. Each is idempotent, so the order of the bindings does not matter.

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_STANDARD_NO_PAD};
use serde_json::{Value as JsonValue, json};
use tokio::io::AsyncReadExt as _;

use crate::http;
use crate::runs::local;
use crate::test_server::TestServer;

const CASES: usize = 300;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    fn part(&mut self) -> JsonValue {
        let content = [
            json!({"text": "Hello."}),
            json!({"text": ""}),
            json!({"raw": "eA=="}),
            // Not UTF-8.
            json!({"raw": "/w=="}),
            json!({"url": "https://x.example/"}),
            json!({"data": {"approve": true}}),
            json!({"data": [1, "x", null]}),
            json!({}),
        ];
        let mut part = self.one(&content).clone();
        if let Some(kind) = self.one(&[None, Some("text/plain"), Some("image/png")]) {
            part["mediaType"] = json!(kind);
        }
        part
    }

    fn send(&mut self, tasks: &[String]) -> JsonValue {
        let parts: Vec<JsonValue> = (0..self.below(4)).map(|_| self.part()).collect();
        let mut message = json!({"messageId": format!("m{}", self.below(40)), "parts": parts});
        let role = *self.one(&["ROLE_USER", "ROLE_USER", "ROLE_USER", "ROLE_AGENT"]);
        message["role"] = json!(role);
        match self.below(4) {
            0 => message["taskId"] = json!(self.one(tasks)),
            1 => message["contextId"] = json!(format!("c{}", self.below(3))),
            _ => {}
        }
        let mut configuration = json!({"returnImmediately": true});
        if let Some(length) = self.one(&[None, Some(-1), Some(0), Some(1)]) {
            configuration["historyLength"] = json!(length);
        }
        json!({"message": message, "configuration": configuration})
    }

    fn list(&mut self) -> JsonValue {
        let mut params = json!({});
        if let Some(size) = self.one(&[None, Some(0), Some(1), Some(100), Some(101)]) {
            params["pageSize"] = json!(size);
        }
        let states = [None, Some("TASK_STATE_SUBMITTED"), Some("TASK_STATE_CANCELED")];
        if let Some(state) = self.one(&states) {
            params["status"] = json!(state);
        }
        if let Some(token) = self.one(&[None, None, Some("x"), Some("WzEsIngiXQ")]) {
            params["pageToken"] = json!(token);
        }
        if self.below(2) == 0 {
            params["contextId"] = json!(format!("c{}", self.below(3)));
        }
        params
    }

    /// A request: its method, and its parameters.
    fn request(&mut self, tasks: &[String]) -> (&'static str, JsonValue) {
        match self.below(8) {
            0..=3 => ("SendMessage", self.send(tasks)),
            4 => ("GetTask", json!({"id": self.one(tasks), "historyLength": self.below(3)})),
            5 => ("CancelTask", json!({"id": self.one(&tasks[1..])})),
            6 => ("ListTasks", self.list()),
            _ => ("GetTaskPushNotificationConfig", json!({"taskId": self.one(tasks), "id": "p"})),
        }
    }
}

/// The client's result, or why there is none.
#[derive(Debug, PartialEq)]
enum Outcome {
    Result(JsonValue),
    Refused(String),
}

fn reason(details: &JsonValue) -> Outcome {
    Outcome::Refused(details[0]["reason"].as_str().expect("an error has a reason").to_owned())
}

async fn by_rpc(server: &TestServer, method: &str, params: &JsonValue) -> Outcome {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let request = server.request("POST", "/a2a/clerk").header("a2a-version", "1.0");
    let answer = request.body(body.to_string()).send().await.json();
    match &answer["error"] {
        JsonValue::Null => Outcome::Result(answer["result"].clone()),
        error => reason(&error["data"]),
    }
}

async fn by_http(server: &TestServer, method: &str, params: &JsonValue) -> Outcome {
    let text = |name: &str| params[name].as_str().unwrap_or_default().to_owned();
    let query = |params: &JsonValue| {
        let pairs = params.as_object().into_iter().flatten().filter(|(name, _)| *name != "id");
        let pairs = pairs.map(|(name, value)| {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            format!("{name}={}", http::escaped(&value))
        });
        pairs.collect::<Vec<_>>().join("&")
    };
    let (verb, path, body) = match method {
        "SendMessage" => ("POST", "message:send".to_owned(), params.to_string()),
        "GetTask" => ("GET", format!("tasks/{}?{}", text("id"), query(params)), String::new()),
        "CancelTask" => ("POST", format!("tasks/{}:cancel", text("id")), String::new()),
        "ListTasks" => ("GET", format!("tasks?{}", query(params)), String::new()),
        _ => {
            let path = format!("tasks/{}/pushNotificationConfigs/{}", text("taskId"), text("id"));
            ("GET", path, String::new())
        }
    };
    let request = server.request(verb, &format!("/a2a/clerk/{path}")).header("a2a-version", "1.0");
    let answer = request.body(body).send().await.json();
    match answer.get("error") {
        None => Outcome::Result(answer),
        Some(error) => reason(&error["details"]),
    }
}

/// The reason, or the bytes of the result in hexadecimal.
async fn by_grpc(server: &TestServer, method: &str, params: &JsonValue) -> Result<Vec<u8>, String> {
    let message = encode(method, params);
    let mut body = vec![0];
    body.extend_from_slice(&u32::try_from(message.len()).expect("it is short").to_be_bytes());
    body.extend_from_slice(&message);
    let path = format!("/lf.a2a.v1.A2AService/{method}");
    let request = server.request("POST", &path).header("a2a-version", "1.0");
    let request = request.header("te", "trailers").header("content-type", "application/grpc+proto");
    let mut socket = request.body(body).begin().await;
    assert_eq!(http::head(&mut socket).await.status, 200);
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.expect("the whole answer");
    let text = String::from_utf8_lossy(&answer).into_owned();
    let trailer = |name: &str| {
        let found = text.rsplit_once(&format!("{name}: "))?.1;
        Some(found.split("\r\n").next().unwrap_or_default().to_owned())
    };
    match trailer("grpc-status").as_deref() {
        Some("0") => Ok(answer),
        Some(_) => {
            let details = trailer("grpc-status-details-bin").expect("an error has details");
            let details = BASE64_STANDARD_NO_PAD.decode(details).expect("it is base64");
            Err(String::from_utf8_lossy(&details).into_owned())
        }
        None => panic!("there is no status: {text}"),
    }
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push((value & 0x7F) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn bytes(number: u64, value: &[u8], out: &mut Vec<u8>) {
    varint(number << 3 | 2, out);
    varint(value.len() as u64, out);
    out.extend_from_slice(value);
}

fn text(number: u64, value: &JsonValue, out: &mut Vec<u8>) {
    if let Some(value) = value.as_str() {
        bytes(number, value.as_bytes(), out);
    }
}

fn int(number: u64, value: &JsonValue, out: &mut Vec<u8>) {
    if let Some(value) = value.as_i64() {
        varint(number << 3, out);
        varint(value.cast_unsigned(), out);
    }
}

/// `google.protobuf.Value`.
fn value(value: &JsonValue) -> Vec<u8> {
    let mut out = Vec::new();
    match value {
        JsonValue::Null => int(1, &json!(0), &mut out),
        JsonValue::Number(number) => {
            out.push(2 << 3 | 1);
            out.extend_from_slice(&number.as_f64().expect("it is small").to_le_bytes());
        }
        JsonValue::String(_) => text(3, value, &mut out),
        JsonValue::Bool(flag) => int(4, &json!(i64::from(*flag)), &mut out),
        JsonValue::Object(members) => {
            let mut all = Vec::new();
            for (name, member) in members {
                let mut entry = Vec::new();
                bytes(1, name.as_bytes(), &mut entry);
                bytes(2, &self::value(member), &mut entry);
                bytes(1, &entry, &mut all);
            }
            bytes(5, &all, &mut out);
        }
        JsonValue::Array(items) => {
            let mut all = Vec::new();
            items.iter().for_each(|item| bytes(1, &self::value(item), &mut all));
            bytes(6, &all, &mut out);
        }
    }
    out
}

/// The request in Protocol Buffers, by `a2a.proto`.
fn encode(method: &str, params: &JsonValue) -> Vec<u8> {
    let mut out = Vec::new();
    bytes(1, b"clerk", &mut out);
    match method {
        "SendMessage" => {
            let message = &params["message"];
            let configuration = &params["configuration"];
            let mut inner = Vec::new();
            text(1, &message["messageId"], &mut inner);
            text(2, &message["contextId"], &mut inner);
            text(3, &message["taskId"], &mut inner);
            let role = if message["role"] == "ROLE_USER" { 1 } else { 2 };
            int(4, &json!(role), &mut inner);
            for part in message["parts"].as_array().expect("a list") {
                let mut content = Vec::new();
                text(1, &part["text"], &mut content);
                if let Some(raw) = part["raw"].as_str() {
                    bytes(2, &BASE64_STANDARD.decode(raw).expect("it is base64"), &mut content);
                }
                text(3, &part["url"], &mut content);
                if let Some(data) = part.get("data") {
                    bytes(4, &value(data), &mut content);
                }
                text(7, &part["mediaType"], &mut content);
                bytes(5, &content, &mut inner);
            }
            bytes(2, &inner, &mut out);
            let mut inner = Vec::new();
            int(3, &configuration["historyLength"], &mut inner);
            int(4, &json!(1), &mut inner);
            bytes(3, &inner, &mut out);
        }
        "ListTasks" => {
            text(2, &params["contextId"], &mut out);
            let state = match params["status"].as_str() {
                Some("TASK_STATE_SUBMITTED") => json!(1),
                Some(_) => json!(5),
                None => JsonValue::Null,
            };
            int(3, &state, &mut out);
            int(4, &params["pageSize"], &mut out);
            text(5, &params["pageToken"], &mut out);
        }
        "GetTaskPushNotificationConfig" => {
            text(2, &params["taskId"], &mut out);
            text(3, &params["id"], &mut out);
        }
        _ => {
            text(2, &params["id"], &mut out);
            int(3, &params["historyLength"], &mut out);
        }
    }
    out
}

/// The texts of a result that a client would compare, in any encoding.
fn texts(of: &JsonValue, all: &mut Vec<String>) {
    match of {
        JsonValue::String(text) => all.push(text.clone()),
        JsonValue::Array(items) => items.iter().for_each(|item| texts(item, all)),
        JsonValue::Object(members) => {
            // In gRPC these are numbers or bytes.
            let members = members.iter().filter(|(name, _)| {
                !["state", "timestamp", "role", "raw"].contains(&name.as_str())
            });
            members.for_each(|(_, member)| texts(member, all));
        }
        _ => {}
    }
}

#[tokio::test]
async fn the_same_request_has_the_same_result() {
    let server =
        TestServer::serving(abide_server::AccessConfig::loopback(), abide_reducers::modules())
            .await;
    let clerk = json!({"name": "clerk", "definition": {"a2a_exposed": true}});
    local(&server, "register_agent", clerk).await;
    let begun = |id: &str, context: &str| {
        let message = json!({"messageId": id, "contextId": context, "role": "ROLE_USER",
            "parts": [{"text": "Hello."}]});
        json!({"message": message, "configuration": {"returnImmediately": true}})
    };
    let mut tasks = Vec::new();
    for (id, context) in [("running", "c0"), ("ended", "c1")] {
        let Outcome::Result(sent) = by_rpc(&server, "SendMessage", &begun(id, context)).await
        else {
            panic!("it is accepted");
        };
        tasks.push(sent["task"]["id"].as_str().expect("it has an id").to_owned());
    }
    by_rpc(&server, "CancelTask", &json!({"id": tasks[1]})).await;
    tasks.push("run_unknown".to_owned());
    let mut random = Random(18);
    let mut results = 0;
    let mut refusals = 0;
    for case in 0..CASES {
        let (method, params) = random.request(&tasks);
        let context = format!("case {case}: {method} {params}");
        let (rpc, http, grpc) = match case % 2 {
            0 => {
                let rpc = by_rpc(&server, method, &params).await;
                let http = by_http(&server, method, &params).await;
                (rpc, http, by_grpc(&server, method, &params).await)
            }
            _ => {
                let grpc = by_grpc(&server, method, &params).await;
                let http = by_http(&server, method, &params).await;
                (by_rpc(&server, method, &params).await, http, grpc)
            }
        };
        assert_eq!(rpc, http, "{context}");
        match (rpc, grpc) {
            (Outcome::Result(result), Ok(answer)) => {
                results += 1;
                let mut all = Vec::new();
                texts(&result, &mut all);
                for text in all {
                    let found = answer.windows(text.len().max(1)).any(|it| it == text.as_bytes());
                    assert!(found || text.is_empty(), "{context}: gRPC has no {text:?}");
                }
            }
            (Outcome::Refused(reason), Err(details)) => {
                refusals += 1;
                assert!(details.contains(&reason), "{context}: {reason}, in gRPC {details}");
            }
            (rpc, grpc) => panic!("{context}: {rpc:?}, in gRPC {grpc:?}"),
        }
    }
    assert!(results > CASES / 5 && refusals > CASES / 5, "{results} results, {refusals} refusals");
}

/// Half a million values in 3 MB took 1.4 GB of memory, and 12 such requests stopped the server.
#[tokio::test]
async fn many_values_are_refused_in_each_binding() {
    let server = crate::agents::server().await;
    let clerk = r#"{"name": "clerk", "a2a_exposed": true}"#;
    assert_eq!(server.post("/agents", clerk).await.status, 201);
    let data = vec![json!({"": null}); 40_000];
    let message = json!({"messageId": "m", "role": "ROLE_USER", "parts": [{"data": data}]});
    let params = json!({"message": message});
    let refused = Outcome::Refused("LIMIT_EXCEEDED".to_owned());
    assert_eq!(by_http(&server, "SendMessage", &params).await, refused);
    let Outcome::Refused(reason) = by_rpc(&server, "SendMessage", &params).await else {
        panic!("it was accepted")
    };
    assert!(!reason.is_empty());
    let why = by_grpc(&server, "SendMessage", &params).await.expect_err("it is refused");
    assert!(why.contains("LIMIT_EXCEEDED"), "{why}");
}
