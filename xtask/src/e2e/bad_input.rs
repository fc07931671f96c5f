//! Sends invalid requests and connections. Each must have the response of kube-apiserver (compare with `cargo xtask e2e
//! --against`), and the server must continue to serve.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use crate::failure::{Outcome, ensure, fail};

use super::World;
use super::watching::version_of;

/// The number of requests of which one must succeed within 2 seconds. All of them together are shorter than the time
/// limit of a TLS handshake (10 s), so a server that waits for a broken connection still fails the check.
const ATTEMPTS_MAX: usize = 3;

/// A request and its expected response.
struct Case {
    name: &'static str,
    method: &'static str,
    path: &'static str,
    content_type: &'static str,
    body: String,
    code: u16,
    /// The reason of the Status; empty for a plain-text response.
    reason: &'static str,
    /// A part of the Status' message, or of the plain text.
    message: &'static str,
}

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const MAPS: &str = "/api/v1/namespaces/shop/configmaps";
const WEB: &str = "/api/v1/namespaces/shop/configmaps/web";

/// Method, path, content type (unused without a body) and body.
type Request = (&'static str, &'static str, &'static str, String);

/// The expected response: code, reason, part of the message.
type Wanted = (u16, &'static str, &'static str);

fn case(name: &'static str, request: Request, wanted: Wanted) -> Case {
    let (method, path, content_type, body) = request;
    let (code, reason, message) = wanted;
    Case { name, method, path, content_type, body, code, reason, message }
}

fn map(metadata: serde_json::Value) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}).to_string()
}

fn cases() -> Vec<Case> {
    let get = |path: &'static str| ("GET", path, "", String::new());
    let post = |body: String| ("POST", MAPS, JSON, body);
    let huge = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "huge"}, "data": {"x": "x".repeat(3 << 20)}});
    vec![
        case("malformed JSON", post("{\"kind\": ".to_owned()), (400, "BadRequest", "unexpected end of JSON input")),
        case("malformed YAML", ("POST", MAPS, "application/yaml", "kind: [".to_owned()), (400, "BadRequest", "yaml")),
        case("an empty body", post(String::new()), (400, "BadRequest", "")),
        case("not an object", post("[1, 2]".to_owned()), (400, "BadRequest", "")),
        case(
            "a wrong kind",
            post(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}}).to_string()),
            (400, "BadRequest", "Secret"),
        ),
        case(
            "a wrong version",
            post(json!({"apiVersion": "v2", "kind": "ConfigMap", "metadata": {"name": "x"}}).to_string()),
            (400, "BadRequest", "v2"),
        ),
        case(
            "a wrong namespace",
            post(map(json!({"name": "x", "namespace": "shop-data"}))),
            (
                400,
                "BadRequest",
                "the namespace of the provided object does not match the namespace sent on the request",
            ),
        ),
        case("no name", post(map(json!({}))), (422, "Invalid", "name or generateName is required")),
        case("an illegal name", post(map(json!({"name": "Not_A_Name"}))), (422, "Invalid", "RFC 1123")),
        case(
            "an illegal label",
            post(map(json!({"name": "x", "labels": {"a b": "c"}}))),
            (422, "Invalid", "metadata.labels"),
        ),
        case(
            "a name that is taken",
            post(map(json!({"name": "web"}))),
            (409, "AlreadyExists", "configmaps \"web\" already exists"),
        ),
        case(
            "a namespace that is not there",
            ("POST", "/api/v1/namespaces/nowhere/configmaps", JSON, map(json!({"name": "x"}))),
            (404, "NotFound", "namespaces \"nowhere\" not found"),
        ),
        case(
            "a stale resource version",
            ("PUT", WEB, JSON, map(json!({"name": "web", "namespace": "shop", "resourceVersion": "1"}))),
            (
                409,
                "Conflict",
                "the object has been modified; please apply your changes to the latest version and try again",
            ),
        ),
        case(
            "another name than the path's",
            ("PUT", WEB, JSON, map(json!({"name": "other", "namespace": "shop"}))),
            (400, "BadRequest", "the name of the object (other) does not match the name on the URL (web)"),
        ),
        case(
            "a thing that is not there",
            get("/api/v1/namespaces/shop/configmaps/none"),
            (404, "NotFound", "configmaps \"none\" not found"),
        ),
        case(
            "an unknown resource",
            get("/api/v1/namespaces/shop/gadgets"),
            (404, "NotFound", "the server could not find the requested resource"),
        ),
        case("an unknown path", get("/nothing/here"), (404, "", "404 page not found")),
        case("an unknown media type", ("POST", MAPS, "text/csv", "a,b".to_owned()), (415, "UnsupportedMediaType", "")),
        case("an unknown patch type", ("PATCH", WEB, JSON, "{}".to_owned()), (415, "UnsupportedMediaType", "")),
        case("a malformed patch", ("PATCH", WEB, MERGE, "{\"data\":".to_owned()), (400, "BadRequest", "")),
        case("a body over 3 MiB", post(huge.to_string()), (413, "RequestEntityTooLarge", "limit is 3145728")),
        case("a method that is not served", ("PUT", MAPS, JSON, "{}".to_owned()), (405, "MethodNotAllowed", "")),
        case("an unparsable selector", get("/api/v1/pods?labelSelector=a%3D%3D%3D"), (400, "BadRequest", "")),
        case(
            "a field that no pod is selected by",
            get("/api/v1/pods?fieldSelector=spec.color%3Dred"),
            (400, "BadRequest", "field label not supported: spec.color"),
        ),
        case(
            "a field that no config map is selected by",
            get("/api/v1/configmaps?fieldSelector=data.x%3D1"),
            (
                400,
                "BadRequest",
                "\"data.x\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
            ),
        ),
        case("a resource version that is none", get("/api/v1/configmaps?resourceVersion=abc"), (400, "BadRequest", "")),
        case(
            "a match without a version",
            get("/api/v1/configmaps?resourceVersionMatch=Exact"),
            (422, "Invalid", "resourceVersionMatch is forbidden unless resourceVersion is provided"),
        ),
        case("a broken continue token", get("/api/v1/configmaps?continue=abc"), (400, "BadRequest", "")),
        case(
            "a version of the future",
            get("/api/v1/configmaps?resourceVersion=999999999"),
            (504, "Timeout", "Too large resource version"),
        ),
        case(
            "a deletion of another uid",
            (
                "DELETE",
                WEB,
                JSON,
                json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "0"}}).to_string(),
            ),
            (409, "Conflict", ""),
        ),
    ]
}

/// Sends requests that are valid HTTP but invalid for the API.
pub(crate) fn requests(world: &mut World) -> Outcome<String> {
    let before = version_of(&world.access.fetch_json(WEB)?);
    let body_file = world.access.dir.join("body");
    let (mut wrong, cases) = (Vec::new(), cases());
    for case in &cases {
        let mut curl = world.access.curl(case.path).args(["--request", case.method]);
        if case.method != "GET" {
            // Over HTTP/2 an answer that comes before the body has been sent ends the stream, which some
            // versions of curl take for an error. HTTP/1.1 has no such moment.
            curl = curl.arg("--http1.1");
            std::fs::write(&body_file, &case.body)?;
            curl = curl.args(["--header", &format!("Content-Type: {}", case.content_type), "--data-binary"]);
            curl = curl.arg(format!("@{}", body_file.display()));
        }
        let answer = world.access.answer(curl)?;
        let status = answer.json().unwrap_or_default();
        let text = status["message"].as_str().map_or_else(|| answer.text(), str::to_owned);
        let reason = status["reason"].as_str().unwrap_or_default();
        let is_status = case.reason.is_empty() || (status["kind"] == "Status" && status["code"] == case.code);
        if answer.code != case.code || reason != case.reason || !text.contains(case.message) || !is_status {
            let Case { code, reason: wanted, message, .. } = case;
            wrong.push(format!(
                "{}: {} {reason} `{}`; wanted {code} {wanted} `{message}`",
                case.name,
                answer.code,
                text.trim()
            ));
        }
    }
    let accept = world.access.curl("/api/v1/pods").args(["--header", "Accept: text/csv"]);
    let answer = world.access.answer(accept)?;
    if answer.code != 406 {
        wrong.push(format!("an unacceptable Accept: {}; wanted 406", answer.code));
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    let after = version_of(&world.access.fetch_json(WEB)?);
    ensure!(before == after, "a refused request changed the object: {before} became {after}");
    Ok(format!("{} kinds of request refused", cases.len() + 1))
}

/// Opens connections that are not HTTP or that stop within a request. None may delay the next client.
pub(crate) fn connections(world: &mut World) -> Outcome<String> {
    let address = world.access.url.trim_start_matches("https://").trim_end_matches('/').to_owned();
    let connect = || -> Outcome<TcpStream> {
        let stream = TcpStream::connect(&address)?;
        stream.set_read_timeout(Some(Duration::from_millis(300)))?;
        Ok(stream)
    };
    let mut retries = 0;
    let mut held = Vec::new();
    let garbage: [(&str, &[u8]); 5] = [
        ("plain HTTP on the TLS port", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        ("a broken hello", &[0x16, 0x03, 0x01, 0x00, 0x05, 0xff, 0xff, 0xff, 0xff, 0xff]),
        ("half a hello", &[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00]),
        ("zeros", &[0; 4096]),
        ("nothing", b""),
    ];
    for (what, bytes) in garbage {
        let mut stream = connect()?;
        stream.write_all(bytes)?;
        // An alert, plain text, silence or a closed connection: all of them are fine. Waiting is not.
        let _ = stream.read(&mut [0; 256]);
        held.push(stream);
        retries += alive(world, what)?;
    }
    // A request whose body is shorter than its length, on a connection that stays open.
    let half = |flags: &[&str]| {
        let curl = world.access.curl(MAPS).args(["--request", "POST", "--header", "Content-Type: application/json"]);
        curl.args(["--header", "Content-Length: 1000", "--data-binary", "{\"half\":"]).args(flags).start()
    };
    let halves = [half(&["--http1.1"])?, half(&["--http1.1", "--limit-rate", "1"])?];
    retries += alive(world, "half a request")?;
    drop(halves);
    retries += alive(world, "half a request, then a closed connection")?;
    drop(held);
    retries += alive(world, "everything closed")?;
    // A stall of the machine may delay one request. A server that broken connections block delays several.
    ensure!(retries <= 1, "{retries} requests beside broken connections had no response within 2 seconds");
    let code = world.access.health(&world.access.curl("/readyz"))?.code;
    ensure!(code == 200, "after all of them, /readyz answers {code}");
    Ok("6 kinds of broken connection".to_owned())
}

/// Checks that one of [`ATTEMPTS_MAX`] requests of another client gets its response within 2 seconds, and returns the
/// number of requests before it. `/version` does not depend on the store. A health check waits up to 2 seconds for the
/// store.
fn alive(world: &World, after: &str) -> Outcome<usize> {
    let mut problem = String::new();
    for attempt in 0..ATTEMPTS_MAX {
        match world.access.answer(world.access.curl("/version").args(["--max-time", "2"])) {
            Ok(answer) if answer.code == 200 => return Ok(attempt),
            Ok(answer) => problem = format!("/version answers {}", answer.code),
            Err(failure) => problem = failure.to_string(),
        }
    }
    fail!("after {after}: {problem}")
}
