//! [`Zpage`]: the pages `/statusz` and `/flagz`, which describe the process of a server, as text and as objects of
//! `config.k8s.io` (`apiserver/pkg/server/statusz` and `apiserver/pkg/server/flagz`; KEP-4827, KEP-4828).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use listwatch_json::{Map, Value, json};
use listwatch_wire::media_type::{ZPAGE_GROUP, ZpageVersion};
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use time::{OffsetDateTime, UtcOffset};

use crate::root_paths::{ServedZpages, ungrouped_paths};
use crate::version::VersionInfo;

/// The name of the server in its pages, as in kube-apiserver.
const COMPONENT: &str = "apiserver";

/// The separators of names and values in the text. kube-apiserver uses a random one, because programs must read the
/// object instead.
pub const ZPAGE_DELIMITERS: [&str; 4] = [":", ": ", "=", " "];

/// The first segments of paths that do not help to examine a server (`nonDebuggingEndpoints`).
const API_PATHS: [&str; 5] = [".well-known", "api", "apis", "openapi", "openid"];

/// Go's `time.UnixDate`, in UTC.
const UNIX_DATE: &[BorrowedFormatItem<'_>] = format_description!(
    "[weekday repr:short] [month repr:short] [day padding:space] [hour]:[minute]:[second] UTC [year]"
);

/// RFC 3339 in whole seconds, in UTC.
const RFC_3339: &[BorrowedFormatItem<'_>] = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]Z");

/// A page about the process of a server.
#[derive(Clone, Debug)]
pub struct Zpage {
    /// The kind of the object.
    kind: &'static str,
    /// The fields of the object, besides its type and its metadata.
    fields: Map,
    /// The lines of the text: names and values.
    lines: Vec<(String, String)>,
}

impl Zpage {
    /// Creates the page `/statusz` of a server that started at `started`.
    pub fn statusz(started: OffsetDateTime, now: OffsetDateTime, zpages: ServedZpages) -> Self {
        let (started, seconds) = (started.to_offset(UtcOffset::UTC), (now - started).whole_seconds().max(0));
        let version = VersionInfo::current();
        let binary = version.git_version.trim_start_matches('v');
        let emulated = format!("{}.{}", version.emulation_major, version.emulation_minor);
        let first_segments = ungrouped_paths(zpages).filter_map(|path| path.split('/').nth(1));
        let shown: BTreeSet<&str> = first_segments.filter(|segment| !API_PATHS.contains(segment)).collect();
        let paths: Vec<String> = shown.into_iter().map(|segment| format!("/{segment}")).collect();
        let show = |format: &[BorrowedFormatItem<'_>]| started.format(format).unwrap_or_default();
        let uptime = format!("{} hr {:02} min {:02} sec", seconds / 3600, seconds / 60 % 60, seconds % 60);
        let lines = [
            ("Started", show(UNIX_DATE)),
            ("Up", uptime),
            ("Go version", version.go_version.clone()),
            ("Binary version", binary.to_owned()),
            ("Emulation version", emulated.clone()),
            ("Paths", paths.join(" ")),
        ];
        let fields = json!({
            "startTime": show(RFC_3339),
            "uptimeSeconds": seconds,
            "goVersion": version.go_version,
            "binaryVersion": binary,
            "emulationVersion": emulated,
            "paths": paths,
        });
        Zpage::new("Statusz", fields, lines.map(|(name, value)| (name.to_owned(), value)).into())
    }

    /// Creates the page `/flagz` of a server that was started with these flags. The values must contain no secrets.
    pub fn flagz(flags: &BTreeMap<String, String>) -> Self {
        let fields = if flags.is_empty() { json!({}) } else { json!({ "flags": flags }) };
        Zpage::new("Flagz", fields, flags.iter().map(|(name, value)| (name.clone(), value.clone())).collect())
    }

    fn new(kind: &'static str, fields: Value, lines: Vec<(String, String)>) -> Self {
        let fields = match fields {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        Zpage { kind, fields, lines }
    }

    /// The kind of the object: `Statusz` or `Flagz`.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// The text for people. `delimiter` is one of [`ZPAGE_DELIMITERS`].
    pub fn to_text(&self, delimiter: &str) -> String {
        let page = self.kind.to_lowercase();
        // The texts of the two pages differ in white space.
        let (start, space) = if self.kind == "Statusz" { ("\n", " ") } else { ("", "") };
        let mut text = format!(
            "\n{COMPONENT} {page}\nWarning: This endpoint is not meant to be machine parseable, has no formatting \
             compatibility guarantees and is for debugging purposes only.\n{start}"
        );
        for (name, value) in &self.lines {
            text.extend([name.as_str(), delimiter, space, value.as_str(), "\n"]);
        }
        text
    }

    /// The object in JSON.
    pub fn to_json(&self, version: ZpageVersion) -> Bytes {
        let api_version = format!("{ZPAGE_GROUP}/{}", version.name());
        let mut object = json!({"kind": self.kind, "apiVersion": api_version, "metadata": {"name": COMPONENT}});
        if let Some(object) = object.as_object_mut() {
            object.extend(self.fields.clone());
        }
        object.to_string().into()
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn statusz_has_the_text_and_the_object_of_kube_apiserver() {
        let started = datetime!(2026-03-04 05:06:07.9 +2);
        let now = started + time::Duration::seconds(3 * 3600 + 62);
        let page = Zpage::statusz(started, now, ServedZpages::default());
        let binary = &VersionInfo::current().git_version[1..];
        let expected = format!(
            "\napiserver statusz\nWarning: This endpoint is not meant to be machine parseable, has no formatting \
             compatibility guarantees and is for debugging purposes only.\n\nStarted: Wed Mar  4 03:06:07 UTC 2026\n\
             Up: 3 hr 01 min 02 sec\nGo version: none\nBinary version: {binary}\nEmulation version: 1.36\n\
             Paths: /flagz /healthz /livez /metrics /readyz /statusz /version\n"
        );
        assert_eq!(page.to_text(":"), expected);
        let object: Value = serde_json::from_slice(&page.to_json(ZpageVersion::V1beta1)).unwrap();
        let expected = json!({
            "kind": "Statusz", "apiVersion": "config.k8s.io/v1beta1", "metadata": {"name": "apiserver"},
            "startTime": "2026-03-04T03:06:07Z", "uptimeSeconds": 10_862, "goVersion": "none", "binaryVersion": binary,
            "emulationVersion": "1.36",
            "paths": ["/flagz", "/healthz", "/livez", "/metrics", "/readyz", "/statusz", "/version"],
        });
        assert_eq!(object, expected);
        let page = Zpage::statusz(started, now, ServedZpages { statusz: true, flagz: false });
        let text = page.to_text(":");
        assert!(text.ends_with("Paths: /healthz /livez /metrics /readyz /statusz /version\n"), "{text}");
    }

    #[test]
    fn flagz_has_the_flags_in_their_order() {
        let flags = [("v", "2"), ("secure-port", "6443")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let page = Zpage::flagz(&flags.into());
        let text = page.to_text("=");
        assert!(text.starts_with("\napiserver flagz\nWarning: This endpoint is not meant"), "{text}");
        assert!(text.ends_with("debugging purposes only.\nsecure-port=6443\nv=2\n"), "{text}");
        let object = page.to_json(ZpageVersion::V1alpha1);
        let expected = r#"{"kind":"Flagz","apiVersion":"config.k8s.io/v1alpha1","metadata":{"name":"apiserver"},"flags":{"secure-port":"6443","v":"2"}}"#;
        assert_eq!(object, expected);
        let object = Zpage::flagz(&BTreeMap::new()).to_json(ZpageVersion::V1beta1);
        assert!(object.ends_with(br#""metadata":{"name":"apiserver"}}"#));
    }
}
