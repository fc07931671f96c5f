//! Media types: negotiation of responses ([`negotiate`]), request bodies ([`negotiate_body`]),
//! patches ([`negotiate_patch`]) and pages about a server ([`negotiate_zpage`]), with kube-apiserver's error texts.
//!
//! A built-in resource is negotiated twice, because kube-apiserver's router checks the plain types before its handler
//! weighs them: `Accept: application/*` is rejected for pods and means JSON for a custom resource. The handler sorts
//! the clauses by `q`, and chooses the first clause that matches any serializer. There is no fallback for a watch: a
//! client that prefers YAML and accepts JSON is rejected (apiserver `endpoints/handlers/negotiation`). `q=0` does not
//! exclude a type, but sorts it last. A `q` that is not a number is zero (`goautoneg`).
//!
//! | | JSON | YAML | protobuf | CBOR |
//! |---|---|---|---|---|
//! | built-in object or list | yes | yes | yes | behind a gate |
//! | custom object or list | yes | yes | 406 | behind a gate |
//! | `as=Table` | yes | yes | 406 | 406 |
//! | `as=PartialObjectMetadata(List)`, custom too | yes | yes | yes | behind a gate |
//! | watch | yes | 406 | as above | as `application/cbor-seq`, requested as `application/cbor` |

mod zpage;

use std::borrow::Cow;
use std::collections::HashMap;

use listwatch_meta::Status;
use listwatch_meta::status::{StatusDetails, reason};

pub use self::zpage::{ZPAGE_GROUP, ZpageForm, ZpageVersion, negotiate_zpage};

/// JSON's media type.
pub const JSON: &str = "application/json";
/// YAML's media type.
pub const YAML: &str = "application/yaml";
/// The media type of Kubernetes' protobuf envelope.
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// CBOR's media type.
pub const CBOR: &str = "application/cbor";
/// The media type of a sequence of CBOR items: a CBOR watch.
pub const CBOR_SEQUENCE: &str = "application/cbor-seq";

/// The encoding of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// JSON: a body is one document, and a watch has one document per line.
    Json,
    /// YAML, for bodies only.
    Yaml,
    /// Protobuf in Kubernetes' `k8s\0` envelope. Each frame of a watch begins with its 4-byte length.
    Protobuf,
    /// CBOR: a body is one self-described item, and a watch is a sequence of items.
    Cbor,
}

impl Encoding {
    /// Every encoding, in the order a server prefers them.
    pub const ALL: [Encoding; 4] = [Encoding::Json, Encoding::Yaml, Encoding::Protobuf, Encoding::Cbor];

    /// The media type of a body.
    pub const fn media_type(self) -> &'static str {
        match self {
            Encoding::Json => JSON,
            Encoding::Yaml => YAML,
            Encoding::Protobuf => PROTOBUF,
            Encoding::Cbor => CBOR,
        }
    }

    /// The `Content-Type` of a watch response; `None` if the encoding cannot be streamed.
    pub const fn stream_media_type(self) -> Option<&'static str> {
        match self {
            Encoding::Json => Some(JSON),
            Encoding::Yaml => None,
            Encoding::Protobuf => Some("application/vnd.kubernetes.protobuf;stream=watch"),
            Encoding::Cbor => Some(CBOR_SEQUENCE),
        }
    }

    /// The name of a watch's encoding in errors.
    const fn accepted_stream_type(self) -> Option<&'static str> {
        match self {
            Encoding::Json => Some("application/json;stream=watch"),
            _ => self.stream_media_type(),
        }
    }
}

/// The kind of response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// One object: the response to a get or a write.
    Object,
    /// A list.
    List,
    /// A stream of events.
    Watch,
}

/// The representations that an endpoint supports, besides JSON and YAML.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Whether protobuf is served, for built-in resources with known messages.
    pub protobuf: bool,
    /// Whether PartialObjectMetadata is served as protobuf. This also holds for custom resources.
    pub protobuf_partial: bool,
    /// Whether CBOR is served, which a feature gate enables.
    pub cbor: bool,
    /// Whether the view `as=Table` is served.
    pub table: bool,
    /// Whether the views `as=PartialObjectMetadata` and `as=PartialObjectMetadataList` are served.
    pub partial: bool,
    /// Whether the resource is built in. For built-in resources the router checks the header first.
    pub builtin: bool,
}

impl Served {
    /// JSON and YAML of a built-in resource, with every view.
    pub const BUILTIN_JSON: Served =
        Served { protobuf: false, protobuf_partial: false, cbor: false, table: true, partial: true, builtin: true };
    /// JSON and YAML of a custom resource, with every view, and protobuf of its metadata.
    pub const CUSTOM_JSON: Served = Served { builtin: false, protobuf_partial: true, ..Served::BUILTIN_JSON };
    /// A built-in resource with everything except CBOR.
    pub const BUILTIN: Served = Served { protobuf: true, protobuf_partial: true, ..Served::BUILTIN_JSON };
    /// A `Status`, which is not an object of a resource: no views, and no router's check.
    pub const STATUS: Served = Served { table: false, partial: false, builtin: false, ..Served::BUILTIN };

    /// The encodings of a response, in the server's order of preference.
    fn encodings(&self) -> impl Iterator<Item = Encoding> + use<> {
        let (protobuf, cbor) = (self.protobuf || self.protobuf_partial, self.cbor);
        Encoding::ALL.into_iter().filter(move |encoding| match encoding {
            Encoding::Json | Encoding::Yaml => true,
            Encoding::Protobuf => protobuf,
            Encoding::Cbor => cbor,
        })
    }

    fn types(&self) -> String {
        join(self.encodings().map(Encoding::media_type).map(str::to_owned))
    }

    fn stream_types(&self) -> String {
        join(self.encodings().filter_map(Encoding::accepted_stream_type).map(str::to_owned))
    }
}

/// The requested rendering of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum View {
    /// The object itself.
    Full,
    /// `meta.k8s.io` `Table`.
    Table {
        /// Whether the version is `v1beta1` instead of `v1`.
        v1beta1: bool,
    },
    /// `meta.k8s.io` `PartialObjectMetadata`, for a list `PartialObjectMetadataList`.
    PartialMetadata {
        /// Whether the version is `v1beta1` instead of `v1`.
        v1beta1: bool,
    },
}

/// The result of a negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The encoding of the response.
    pub encoding: Encoding,
    /// The rendering of the objects.
    pub view: View,
    /// Whether the clause contained `pretty=1`; see [`wants_pretty`].
    pub pretty: bool,
}

impl Negotiated {
    /// Plain JSON, the default of a client without preferences.
    pub const JSON: Negotiated = Negotiated { encoding: Encoding::Json, view: View::Full, pretty: false };

    /// The `Content-Type` of the response.
    pub fn content_type(&self, purpose: Purpose) -> &'static str {
        match purpose {
            Purpose::Watch => self.encoding.stream_media_type().unwrap_or(JSON),
            Purpose::Object | Purpose::List => self.encoding.media_type(),
        }
    }
}

/// Chooses encoding and view of a response from the `Accept` header.
///
/// # Errors
/// 406 with kube-apiserver's message when nothing matches.
pub fn negotiate(accept: Option<&str>, purpose: Purpose, served: &Served) -> Result<Negotiated, Status> {
    let accept = accept.unwrap_or_default();
    if accept.is_empty() {
        return Ok(Negotiated::JSON);
    }
    if served.builtin {
        route(accept, purpose, served)?;
    }
    for clause in parse_accept(accept) {
        let fits = |encoding: &Encoding| clause.range_matches(encoding.media_type());
        for encoding in served.encodings().filter(fits) {
            let Some(view) = clause.view(encoding, served) else { continue };
            if purpose == Purpose::Watch && encoding.stream_media_type().is_none() {
                return Err(only_accepted(&served.stream_types()));
            }
            clause.check_pairing(purpose)?;
            return Ok(Negotiated { encoding, view, pretty: clause.param("pretty") == Some("1") });
        }
    }
    Err(only_accepted(&served.types()))
}

/// Chooses the encoding of aggregated discovery; `None` if no clause of the `Accept` header asks for it. Clauses without
/// a view do not count, even if they come first (apiserver `endpoints/discovery/aggregated`, `WrappedHandler` and
/// `discoveryEndpointRestrictions`). The removed version `v2beta1` does not count either.
pub fn negotiate_aggregated_discovery(accept: Option<&str>) -> Option<Negotiated> {
    const KIND: &str = "APIGroupDiscoveryList";
    // Most clients of other documents do not name the kind, and their header is parsed only once.
    let accept = accept.filter(|accept| accept.contains(KIND))?;
    parse_accept(accept).iter().find_map(|clause| {
        let has = |name, value| clause.param(name) == Some(value);
        let is_aggregated = has("as", KIND) && has("g", "apidiscovery.k8s.io") && has("v", "v2");
        if !is_aggregated || clause.param("sv").is_some_and(|version| !version.is_empty()) {
            return None;
        }
        let encoding = Served::STATUS.encodings().find(|encoding| clause.range_matches(encoding.media_type()))?;
        Some(Negotiated { encoding, view: View::Full, pretty: clause.param("pretty") == Some("1") })
    })
}

fn only_accepted(types: &str) -> Status {
    not_acceptable(format!("{ONLY_ACCEPTED}{types}"))
}

const ONLY_ACCEPTED: &str = "only the following media types are accepted: ";
const YOU_REQUESTED: &str = "you requested PartialObjectMetadata";

/// Whether kube-apiserver returns this error only when it encodes the response, after validating
/// the options and reading. That holds for a view that does not fit the response, and for an
/// encoding without a stream. All other errors of [`negotiate`] precede the validation of options.
pub fn is_late_refusal(status: &Status) -> bool {
    let stream = status.message.strip_prefix(ONLY_ACCEPTED).is_some_and(|types| types.contains("stream=watch"));
    status.code == 406 && (stream || status.message.starts_with(YOU_REQUESTED))
}

/// The router's check: an element, without its parameters, is `*/*` or a produced type.
fn route(accept: &str, purpose: Purpose, served: &Served) -> Result<(), Status> {
    let routed = accept.split(',').any(|element| {
        let bare = element.split(';').next().unwrap_or_default().trim();
        bare == "*/*" || served.encodings().any(|encoding| encoding.media_type() == bare)
    });
    if routed {
        return Ok(());
    }
    let mut produced = served.types();
    if purpose != Purpose::Object {
        produced = format!("{produced}, {}", served.stream_types());
    }
    // The router's generic error always has details, even if empty.
    Err(not_acceptable(format!("406: Not Acceptable\n\nAvailable representations: {produced}"))
        .with_details(StatusDetails::default()))
}

fn not_acceptable(message: String) -> Status {
    Status::failure(406, reason::NOT_ACCEPTABLE, message)
}

/// Whether JSON is indented: by `?pretty` if given, else by the `Accept` clause's `pretty=1`, else
/// for clients that show responses to humans (curl, wget, a browser). Never applies to a watch.
pub fn wants_pretty(query_pretty: Option<&str>, negotiated: &Negotiated, user_agent: Option<&str>) -> bool {
    if negotiated.encoding != Encoding::Json {
        return false;
    }
    if negotiated.pretty {
        return true;
    }
    if let Some(pretty) = query_pretty.filter(|pretty| !pretty.is_empty()) {
        return matches!(pretty, "1" | "t" | "T" | "TRUE" | "true" | "True");
    }
    let agent = user_agent.unwrap_or_default();
    ["curl", "Wget", "Mozilla/5.0"].iter().any(|prefix| agent.starts_with(prefix))
}

/// The encoding of a request body by its `Content-Type`; JSON if absent.
///
/// # Errors
/// 415 with kube-apiserver's message.
pub fn negotiate_body(content_type: Option<&str>, served: &Served) -> Result<Encoding, Status> {
    let content_type = content_type.unwrap_or_default();
    if content_type.is_empty() {
        return Ok(Encoding::Json);
    }
    let bare = bare_type(content_type);
    let taken = Served { protobuf_partial: false, ..*served };
    taken
        .encodings()
        .find(|encoding| encoding.media_type().eq_ignore_ascii_case(bare) && has_valid_params(content_type))
        .ok_or_else(|| unsupported_media_type(&taken.types()))
}

/// The type of a PATCH body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PatchType {
    /// RFC 6902.
    Json,
    /// RFC 7386.
    Merge,
    /// Kubernetes' own type, which uses the merge keys of lists; for built-in resources only.
    StrategicMerge,
    /// Server-side apply; the body is YAML or JSON.
    Apply,
}

impl PatchType {
    /// The media type of the patch.
    pub const fn media_type(self) -> &'static str {
        match self {
            PatchType::Json => "application/json-patch+json",
            PatchType::Merge => "application/merge-patch+json",
            PatchType::StrategicMerge => "application/strategic-merge-patch+json",
            PatchType::Apply => "application/apply-patch+yaml",
        }
    }
}

/// The type of a patch by its `Content-Type`. A built-in resource supports all four types, a custom
/// one all except the strategic merge patch.
///
/// # Errors
/// 415: the router's bare text for a built-in resource, the list of types for a custom one.
pub fn negotiate_patch(content_type: Option<&str>, served: &Served) -> Result<PatchType, Status> {
    const TYPES: [PatchType; 4] = [PatchType::Json, PatchType::Merge, PatchType::StrategicMerge, PatchType::Apply];
    let taken = || TYPES.into_iter().filter(|patch| served.builtin || *patch != PatchType::StrategicMerge);
    let bare = bare_type(content_type.unwrap_or_default());
    taken().find(|patch| patch.media_type() == bare).ok_or_else(|| {
        if served.builtin {
            Status::failure(415, reason::UNSUPPORTED_MEDIA_TYPE, "415: Unsupported Media Type")
                .with_details(StatusDetails::default())
        } else {
            unsupported_media_type(&join(taken().map(|patch| patch.media_type().to_owned())))
        }
    })
}

fn unsupported_media_type(types: &str) -> Status {
    let message = format!("the body of the request was in an unknown format - accepted media types include: {types}");
    Status::failure(415, reason::UNSUPPORTED_MEDIA_TYPE, message)
}

/// Whether every parameter has a name and a value, and no name occurs with two different values. Otherwise Go parses no
/// media type at all (`mime.ParseMediaType`). A parameter may be repeated, and a trailing semicolon is allowed.
fn has_valid_params(content_type: &str) -> bool {
    // The end is trimmed once, so that each character is looked at a few times at most.
    let mut rest = content_type.find(';').map_or("", |at| content_type[at..].trim());
    let mut values: HashMap<String, Cow<'_, str>> = HashMap::new();
    while !matches!(rest, "" | ";") {
        let Some((name, value, behind)) = take_param(rest) else { return false };
        let name = name.to_ascii_lowercase();
        if values.get(&name).is_some_and(|known| *known != value) {
            return false;
        }
        values.insert(name, value);
        rest = behind.trim_start();
    }
    true
}

/// Splits `;name=value` off the text: the name, the value without quotes, and the rest. `None` if the text does not begin
/// with a parameter.
fn take_param(text: &str) -> Option<(&str, Cow<'_, str>, &str)> {
    let (name, rest) = take_token(text.trim_start().strip_prefix(';')?.trim_start())?;
    let value = rest.trim_start().strip_prefix('=')?.trim_start();
    let (value, rest) = match value.strip_prefix('"') {
        Some(quoted) => take_quoted(quoted)?,
        None => take_token(value).map(|(token, rest)| (Cow::Borrowed(token), rest))?,
    };
    Some((name, value, rest))
}

/// Splits a token of RFC 2045 off the text; `None` if the token is empty.
fn take_token(text: &str) -> Option<(&str, &str)> {
    let is_token = |byte: &u8| byte.is_ascii_graphic() && !is_special(*byte);
    let bytes = text.bytes().take_while(is_token).count();
    (bytes > 0).then(|| text.split_at(bytes))
}

/// Splits a quoted string off the text, whose opening quote was removed: the contents without escapes, and the text after
/// the closing quote.
fn take_quoted(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let mut unescaped: Option<String> = None;
    // The end of the part that is already in `unescaped`.
    let mut copied = 0;
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => {
                let contents = match unescaped {
                    Some(contents) => Cow::Owned(contents + &text[copied..at]),
                    None => Cow::Borrowed(&text[..at]),
                };
                return Some((contents, &text[at + 1..]));
            }
            // Go takes a backslash before any other character as it is.
            b'\\' if text.as_bytes().get(at + 1).is_some_and(|next| is_special(*next)) => {
                unescaped.get_or_insert_default().push_str(&text[copied..at]);
                copied = at + 1;
                bytes.next();
            }
            _ => {}
        }
    }
    None
}

/// The characters that a token cannot have (`tspecials` of RFC 2045).
fn is_special(byte: u8) -> bool {
    b"()<>@,;:\\\"/[]?=".contains(&byte)
}

fn bare_type(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

fn join(types: impl Iterator<Item = String>) -> String {
    types.collect::<Vec<_>>().join(", ")
}

/// One clause of an `Accept` header.
struct Clause<'a> {
    kind: &'a str,
    subtype: &'a str,
    quality: f32,
    params: Vec<(&'a str, &'a str)>,
}

impl<'a> Clause<'a> {
    fn param(&self, name: &str) -> Option<&'a str> {
        // The last of duplicate parameters counts, as in a Go map.
        self.params.iter().rev().find(|(key, _)| *key == name).map(|(_, value)| *value)
    }

    fn range_matches(&self, media_type: &str) -> bool {
        let (kind, subtype) = media_type.split_once('/').unwrap_or((media_type, ""));
        (self.kind == "*" && self.subtype == "*")
            || (self.kind == kind && (self.subtype == subtype || self.subtype == "*"))
    }

    /// The view requested by the clause, if the endpoint has it in this encoding; `None` makes the
    /// clause fail (`acceptMediaTypeOptions`).
    fn view(&self, encoding: Encoding, served: &Served) -> Option<View> {
        let wanted = |name| self.param(name).filter(|value| !value.is_empty());
        if wanted("stream").is_some_and(|stream| stream != "watch" || encoding.stream_media_type().is_none()) {
            return None;
        }
        // The version of the server's own types.
        if wanted("sv").is_some_and(|version| version != "v1") {
            return None;
        }
        let [kind, group, version] = ["as", "g", "v"].map(|name| self.param(name));
        if kind.is_none() && group.is_none() && version.is_none() {
            return (encoding != Encoding::Protobuf || served.protobuf).then_some(View::Full);
        }
        let v1beta1 = match (group, version) {
            (Some("meta.k8s.io"), Some("v1")) => false,
            (Some("meta.k8s.io"), Some("v1beta1")) => true,
            _ => return None,
        };
        match kind {
            Some("Table") => {
                let readable = matches!(encoding, Encoding::Json | Encoding::Yaml);
                (served.table && readable).then_some(View::Table { v1beta1 })
            }
            Some("PartialObjectMetadata" | "PartialObjectMetadataList") => {
                served.partial.then_some(View::PartialMetadata { v1beta1 })
            }
            _ => None,
        }
    }

    /// Rejects a list as one object's metadata, and vice versa.
    fn check_pairing(&self, purpose: Purpose) -> Result<(), Status> {
        let is_list = purpose == Purpose::List;
        match self.param("as") {
            Some("PartialObjectMetadata") if is_list => {
                Err(not_acceptable(format!("{YOU_REQUESTED}, but the requested object is a list")))
            }
            Some("PartialObjectMetadataList") if !is_list => {
                Err(not_acceptable(format!("{YOU_REQUESTED}List, but the requested object is not a list")))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the offer that an `Accept` header prefers; `None` if the header accepts no offer. An offer is a media type
/// with a value. A wildcard selects the first matching offer. No header accepts all offers.
///
/// Used for OpenAPI documents (`kube-openapi/pkg/handler` and `handler3`).
pub fn preferred<T: Copy>(accept: Option<&str>, offers: &[(&str, T)]) -> Option<T> {
    let accept = accept.filter(|accept| !accept.is_empty()).unwrap_or("*/*");
    parse_accept(accept).iter().find_map(|clause| {
        let fits = |media_type: &str| {
            let (kind, subtype) = media_type.split_once('/').unwrap_or_default();
            (clause.kind == kind || clause.kind == "*") && (clause.subtype == subtype || clause.subtype == "*")
        };
        offers.iter().find(|(media_type, _)| fits(media_type)).map(|(_, offer)| *offer)
    })
}

/// Number of clauses up to which they are sorted as in Go.
const CLAUSES_AS_IN_GO: usize = 12;

/// The clauses, best first.
///
/// Go's comparison is not an order. A specific type precedes a wildcard even with a lower `q`, and follows the wildcard
/// because of the lower `q`. So the result depends on the sorting algorithm, which is insertion sort for any realistic
/// number of clauses. With more clauses, `q` decides first.
fn parse_accept(accept: &str) -> Vec<Clause<'_>> {
    let mut clauses: Vec<Clause<'_>> = accept.split(',').filter_map(parse_clause).collect();
    let wildcards = |clause: &Clause<'_>| (clause.kind == "*", clause.subtype == "*");
    if clauses.len() > CLAUSES_AS_IN_GO {
        clauses.sort_by(|a, b| b.quality.total_cmp(&a.quality).then_with(|| wildcards(a).cmp(&wildcards(b))));
        return clauses;
    }
    let goes_before = |a: &Clause<'_>, b: &Clause<'_>| {
        let ((any, any_sub), (other_any, other_any_sub)) = (wildcards(a), wildcards(b));
        a.quality > b.quality || (!any && other_any) || (!any_sub && other_any_sub)
    };
    for end in 1..clauses.len() {
        let mut at = end;
        while at > 0 && goes_before(&clauses[at], &clauses[at - 1]) {
            clauses.swap(at, at - 1);
            at -= 1;
        }
    }
    clauses
}

fn parse_clause(text: &str) -> Option<Clause<'_>> {
    fn trim(text: &str) -> &str {
        text.trim_matches(' ')
    }
    let mut parts = text.split(';');
    let range = parts.next().map(trim).filter(|range| !range.is_empty())?;
    let (kind, subtype) = match range.split_once('/') {
        Some((_, subtype)) if subtype.contains('/') => return None,
        Some((kind, subtype)) => (trim(kind), trim(subtype)),
        None if range == "*" => ("*", "*"),
        None => return None,
    };
    let mut clause = Clause { kind, subtype, quality: 1.0, params: Vec::new() };
    for part in parts {
        let Some((key, value)) = part.split_once('=') else { continue };
        match trim(key) {
            "q" => clause.quality = value.parse().unwrap_or(0.0),
            key => clause.params.push((key, trim(value))),
        }
    }
    Some(clause)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
    const TYPES: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
    const STREAMS: &str = "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";
    const BUILTIN: Served = Served::BUILTIN;
    const CUSTOM: Served = Served::CUSTOM_JSON;

    fn check(accept: &str, purpose: Purpose, served: Served, expected: Result<(Encoding, View), &str>) {
        let found = negotiate(Some(accept), purpose, &served);
        let found = found.map(|found| (found.encoding, found.view)).map_err(|status| {
            assert_eq!((status.code, &*status.reason), (406, "NotAcceptable"));
            status.message
        });
        assert_eq!(found, expected.map_err(str::to_owned), "{accept} for {purpose:?}");
    }

    #[test]
    fn first_matching_accept_clause_is_chosen() {
        use Encoding::{Json, Protobuf, Yaml};
        use Purpose::{List, Object};
        check("", List, BUILTIN, Ok((Json, View::Full)));
        check("*/*", List, BUILTIN, Ok((Json, View::Full)));
        check("application/yaml", Object, BUILTIN, Ok((Yaml, View::Full)));
        check("application/vnd.kubernetes.protobuf, */*", List, BUILTIN, Ok((Protobuf, View::Full)));
        check("*/*, application/yaml", List, BUILTIN, Ok((Yaml, View::Full)));
        check("application/yaml;q=0.5, application/json;q=0.9", List, BUILTIN, Ok((Json, View::Full)));
        check("text/html, application/xml;q=0.9, */*;q=0.8", List, BUILTIN, Ok((Json, View::Full)));
        check("application/json;stream=watch", List, BUILTIN, Ok((Json, View::Full)));
        check("application/*", List, CUSTOM, Ok((Json, View::Full)));
        check("application/json;charset=utf-8", List, CUSTOM, Ok((Json, View::Full)));
        check("application/json;q=banana", List, CUSTOM, Ok((Json, View::Full)));
        check("*", List, CUSTOM, Ok((Json, View::Full)));
        // Other texts without a slash, other types, and a wildcard before a subtype match nothing.
        let accepted = format!("only the following media types are accepted: {TYPES}");
        for unmatched in ["json", "text/*", "*/json"] {
            check(unmatched, List, CUSTOM, Err(&accepted));
        }
    }

    #[test]
    fn accept_parameters_as_v_and_g_choose_the_view() {
        use Purpose::{List, Object, Watch};
        let table = Ok((Encoding::Json, View::Table { v1beta1: false }));
        let kubectl = format!("{TABLE},application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json");
        check(&kubectl, List, BUILTIN, table);
        check(&kubectl, Watch, BUILTIN, table);
        check(&kubectl, List, Served { table: false, ..BUILTIN }, Ok((Encoding::Json, View::Full)));
        // A Status has no views.
        check(&kubectl, Object, Served::STATUS, Ok((Encoding::Json, View::Full)));
        let metadata_or_whole = format!("{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1, {JSON}");
        check(&metadata_or_whole, Object, Served::STATUS, Ok((Encoding::Json, View::Full)));
        check(
            "application/json;as=Table;v=v1beta1;g=meta.k8s.io",
            Object,
            BUILTIN,
            Ok((Encoding::Json, View::Table { v1beta1: true })),
        );
        let metadata = View::PartialMetadata { v1beta1: false };
        let partial = |kind: &str, media: &str| format!("{media};as={kind};g=meta.k8s.io;v=v1");
        check(&partial("PartialObjectMetadata", JSON), Watch, BUILTIN, Ok((Encoding::Json, metadata)));
        check(&partial("PartialObjectMetadataList", PROTOBUF), List, BUILTIN, Ok((Encoding::Protobuf, metadata)));
        check(&partial("PartialObjectMetadataList", PROTOBUF), List, CUSTOM, Ok((Encoding::Protobuf, metadata)));
        check(&format!("{PROTOBUF}, {JSON}"), List, CUSTOM, Ok((Encoding::Json, View::Full)));
        check(
            &partial("PartialObjectMetadata", JSON),
            List,
            BUILTIN,
            Err("you requested PartialObjectMetadata, but the requested object is a list"),
        );
        check(
            &partial("PartialObjectMetadataList", JSON),
            Object,
            BUILTIN,
            Err("you requested PartialObjectMetadataList, but the requested object is not a list"),
        );
        // A part of a view's type is no view, so the clause fails.
        let accepted = format!("only the following media types are accepted: {TYPES}");
        for params in
            ["as=Table", "g=meta.k8s.io", "v=v1", "g=meta.k8s.io;v=v1", "as=Table;v=v1", "as=Table;g=meta.k8s.io"]
        {
            check(&format!("{JSON};{params}"), List, BUILTIN, Err(&accepted));
        }
    }

    #[test]
    fn accept_quality_is_weighed_as_in_go() {
        use Encoding::{Json, Yaml};
        use Purpose::List;
        let check = |accept: &str, expected| check(accept, List, CUSTOM, Ok((expected, View::Full)));
        check("application/yaml;q=0, application/json;q=0.1", Json);
        // Not excluded.
        check("application/yaml;q=0", Yaml);
        check("application/json;q=banana, application/yaml;q=0.1", Yaml);
        check("application/json;q= 1, application/yaml;q=0.1", Yaml);
        // Go's order depends on the positions.
        check("application/yaml;q=0.5, */*;q=0.9", Json);
        check("*/*;q=0.9, application/yaml;q=0.5", Yaml);
        check("application/yaml/x, application/json", Json);
        check("application/*;q=0.9, application/yaml;q=0.5", Yaml);
        // Go's sort is an insertion sort up to 12 clauses. A clause with two slashes does not count.
        let many = |others: usize| format!("{}*/*;q=0.9, application/yaml;q=0.8", "text/a,".repeat(others));
        check(&many(10), Yaml);
        check(&format!("text/a/b,{}", many(10)), Yaml);
        check(&many(11), Json);
        check(&many(12), Json);
        // The type's wildcard sorts behind the subtype's.
        let table_of_any = "*/*;as=Table;v=v1;g=meta.k8s.io";
        let full = super::negotiate(Some(&format!("{table_of_any}, application/*")), List, &CUSTOM);
        assert_eq!(full.map(|found| found.view), Ok(View::Full), "`application/*` precedes `*/*`");
        let refused = negotiate(Some(" "), List, &CUSTOM).expect_err("a space is no clause");
        assert_eq!(refused.code, 406);
    }

    #[test]
    fn encoding_is_negotiated_only_if_served() {
        use Encoding::{Cbor, Protobuf};
        use Purpose::{List, Object, Watch};
        let accepted = format!("only the following media types are accepted: {TYPES}");
        let view = |media: &str, kind: &str| format!("{media};as={kind};g=meta.k8s.io;v=v1");
        let partial = View::PartialMetadata { v1beta1: false };
        check(PROTOBUF, Watch, CUSTOM, Err(&accepted));
        check(&view(PROTOBUF, "PartialObjectMetadata"), Watch, CUSTOM, Ok((Protobuf, partial)));
        check(&view(PROTOBUF, "Table"), List, CUSTOM, Err(&accepted));
        check("application/vnd.kubernetes.protobuf;stream=watch", Watch, BUILTIN, Ok((Protobuf, View::Full)));
        check("application/vnd.kubernetes.protobuf;sv=v1", Object, BUILTIN, Ok((Protobuf, View::Full)));
        check("application/vnd.kubernetes.protobuf;sv=v2", Object, BUILTIN, Err(&accepted));
        // CBOR, behind its gate.
        let accepted = format!("{accepted}, application/cbor");
        for served in [BUILTIN, CUSTOM].map(|served| Served { cbor: true, ..served }) {
            check(CBOR, List, served, Ok((Cbor, View::Full)));
            check(CBOR, Watch, served, Ok((Cbor, View::Full)));
            check("application/cbor;stream=watch", Watch, served, Ok((Cbor, View::Full)));
            check(&view(CBOR, "PartialObjectMetadata"), Watch, served, Ok((Cbor, partial)));
            check(&view(CBOR, "Table"), List, served, Err(&accepted));
            assert_eq!(negotiate_body(Some(CBOR), &served), Ok(Cbor));
        }
        let custom = Served { cbor: true, ..CUSTOM };
        check(CBOR_SEQUENCE, Watch, custom, Err(&accepted));
        let streams = format!("only the following media types are accepted: {STREAMS}, application/cbor-seq");
        check(YAML, Watch, custom, Err(&streams));
        let watch = negotiate(Some(CBOR), Watch, &custom).expect("CBOR");
        assert_eq!((watch.content_type(Watch), watch.content_type(List)), (CBOR_SEQUENCE, CBOR));
    }

    #[test]
    fn not_acceptable_error_lists_the_served_types() {
        use Purpose::{List, Object, Watch};
        let routed = format!("406: Not Acceptable\n\nAvailable representations: {TYPES}, {STREAMS}");
        check("text/plain", List, BUILTIN, Err(&routed));
        check("application/*", Watch, BUILTIN, Err(&routed));
        let routed = format!("406: Not Acceptable\n\nAvailable representations: {TYPES}");
        check("text/plain", Object, BUILTIN, Err(&routed));
        let accepted = format!("only the following media types are accepted: {TYPES}");
        check("text/plain", List, CUSTOM, Err(&accepted));
        check(PROTOBUF, List, CUSTOM, Err(&accepted));
        let streams = format!("only the following media types are accepted: {STREAMS}");
        check("application/yaml", Watch, BUILTIN, Err(&streams));
        check("application/yaml, application/json", Watch, BUILTIN, Err(&streams));
        check("application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io", List, BUILTIN, Err(&accepted));
        check("application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io", Watch, BUILTIN, Err(&accepted));
        check("application/json;stream=tail", List, CUSTOM, Err(&accepted));
    }

    #[test]
    fn is_late_refusal_is_true_only_for_unsupported_streams_and_views() {
        fn check(accept: &str, purpose: Purpose, served: Served, late: bool) {
            let status = negotiate(Some(accept), purpose, &served).expect_err("406");
            assert_eq!(is_late_refusal(&status), late, "{accept} for {purpose:?}: {}", status.message);
        }
        use Purpose::{List, Object, Watch};
        check(YAML, Watch, BUILTIN, true);
        check(YAML, Watch, CUSTOM, true);
        let partial = |kind: &str| format!("application/json;as={kind};g=meta.k8s.io;v=v1");
        check(&partial("PartialObjectMetadata"), List, CUSTOM, true);
        check(&partial("PartialObjectMetadataList"), Object, BUILTIN, true);
        // The router's error names the types of streams, too.
        check("text/plain", Watch, BUILTIN, false);
        check("text/plain", Watch, CUSTOM, false);
        check(PROTOBUF, List, CUSTOM, false);
        let other = Status::bad_request("you requested PartialObjectMetadata, but the requested object is a list");
        assert!(!is_late_refusal(&other), "a 400 is no refusal of a media type");
    }

    #[test]
    fn json_is_indented_for_browsers_and_on_request() {
        fn check(query: Option<&str>, accept: &str, agent: &str, expected: bool) {
            let negotiated = negotiate(Some(accept), Purpose::List, &CUSTOM).unwrap();
            assert_eq!(wants_pretty(query, &negotiated, Some(agent)), expected, "{query:?} {accept} {agent}");
        }
        check(None, "*/*", "kubectl/v1.36", false);
        check(None, "*/*", "curl/8.0", true);
        check(Some("false"), "*/*", "curl/8.0", false);
        check(Some("0"), "*/*", "curl/8.0", false);
        check(Some(""), "*/*", "curl/8.0", true);
        check(Some("true"), "*/*", "x", true);
        check(Some("banana"), "*/*", "curl/8", false);
        check(None, "application/json;pretty=1", "x", true);
        check(Some("true"), "application/yaml", "curl/8", false);
    }

    #[test]
    fn unsupported_body_or_patch_type_returns_415() {
        fn body(content_type: Option<&str>, served: Served, expected: Result<Encoding, &str>) {
            let found = negotiate_body(content_type, &served).map_err(|status| (status.code, status.message));
            assert_eq!(found, expected.map_err(|text| (415, text.to_owned())), "{content_type:?}");
        }
        body(None, BUILTIN, Ok(Encoding::Json));
        body(Some("Application/JSON; charset=utf-8"), BUILTIN, Ok(Encoding::Json));
        body(Some("application/yaml"), CUSTOM, Ok(Encoding::Yaml));
        let text = format!("the body of the request was in an unknown format - accepted media types include: {TYPES}");
        body(Some("text/plain"), BUILTIN, Err(&text));
        body(Some(CBOR), BUILTIN, Err(&text));
        // `mime.ParseMediaType` needs a token, `=`, and a token or a quoted text.
        for params in ["charset", "charset=", "=x", "a(b=c", "a b=c", "charset=a(b", "charset=a b", "charset=\u{e4}"] {
            body(Some(&format!("application/json;{params}")), BUILTIN, Err(&text));
        }
        for params in
            [r#"x=""#, r#"x="a"#, r#"x=a""#, r#"x="a"b"#, r#"x="a\""#, r#"x="\\"""#, ";x=y", "x=y;;", "x=y z=y"]
        {
            body(Some(&format!("application/json;{params}")), BUILTIN, Err(&text));
        }
        for params in ["x=y;x=z", "x=y;a=b;X=z", r#"x=y;x="z""#, r#"x="\\";x="\\\\""#, r#"x="a\b";x=ab"#] {
            body(Some(&format!("application/json;{params}")), BUILTIN, Err(&text));
        }
        for params in ["x=y;x=y", r#"x=y;X="y""#, r#"x="a\"b";x="a\"b""#, r#"x="a\,b";x="a,b""#] {
            body(Some(&format!("application/json;{params}")), BUILTIN, Ok(Encoding::Json));
        }
        for params in
            ["", " ", "x=y;", "x = y ; z=y ; ", r#"x="a b""#, r#"x="";y=z"#, r#"x="a;b""#, r#"x="\"";"#, r#"x="\\""#]
        {
            body(Some(&format!("application/json;{params}")), BUILTIN, Ok(Encoding::Json));
        }
        // Protobuf of the metadata is for responses only.
        let custom = text.replace(&format!(", {PROTOBUF}"), "");
        body(Some(PROTOBUF), CUSTOM, Err(&custom));
        body(Some(PROTOBUF), BUILTIN, Ok(Encoding::Protobuf));

        fn patch(content_type: Option<&str>, served: Served, expected: Result<PatchType, &str>) {
            let found = negotiate_patch(content_type, &served).map_err(|status| (status.code, status.message));
            assert_eq!(found, expected.map_err(|text| (415, text.to_owned())), "{content_type:?}");
        }
        patch(Some("application/merge-patch+json"), BUILTIN, Ok(PatchType::Merge));
        patch(Some("application/strategic-merge-patch+json;x=y"), BUILTIN, Ok(PatchType::StrategicMerge));
        patch(Some("application/apply-patch+yaml"), CUSTOM, Ok(PatchType::Apply));
        patch(None, BUILTIN, Err("415: Unsupported Media Type"));
        patch(
            Some("application/strategic-merge-patch+json"),
            CUSTOM,
            Err(
                "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
            ),
        );
    }

    #[test]
    fn aggregated_discovery_is_chosen_by_the_first_clause_that_asks_for_it() {
        fn check(accept: &str, expected: Option<Encoding>) {
            let found = negotiate_aggregated_discovery(Some(accept)).map(|negotiated| negotiated.encoding);
            assert_eq!(found, expected, "{accept}");
        }
        const V2: &str = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        const BETA: &str = ";g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
        assert_eq!(negotiate_aggregated_discovery(None), None);
        check("", None);
        check("*/*", None);
        check("application/json", None);
        check(&format!("application/json{V2}"), Some(Encoding::Json));
        check(&format!("application/json{BETA},application/json{V2},application/json"), Some(Encoding::Json));
        check(&format!("application/json{BETA}, application/json"), None);
        check(&format!("application/json, application/json{V2}"), Some(Encoding::Json));
        check(&format!("*/*{V2}"), Some(Encoding::Json));
        check(&format!("application/yaml{V2}"), Some(Encoding::Yaml));
        check(&format!("{PROTOBUF}{V2},application/json{V2}"), Some(Encoding::Protobuf));
        check(&format!("{PROTOBUF}{V2};q=0.5,application/json{V2}"), Some(Encoding::Json));
        check(&format!("application/json{V2};sv=v1"), None);
        check(&format!("text/html{V2}"), None);
        check("application/json;g=meta.k8s.io;v=v1;as=APIGroupDiscoveryList", None);
    }

    proptest! {
        #[test]
        fn unmatched_random_accept_header_returns_406(accept in "[a-z*/;=,.+ q0-9\"]{0,60}|.{0,40}") {
            for purpose in [Purpose::Object, Purpose::List, Purpose::Watch] {
                for served in [BUILTIN, CUSTOM] {
                    if let Err(status) = negotiate(Some(&accept), purpose, &served) {
                        prop_assert_eq!(status.code, 406);
                    }
                }
            }
            let _ = negotiate_body(Some(&accept), &BUILTIN);
            let _ = negotiate_patch(Some(&accept), &CUSTOM);
        }
    }
}
