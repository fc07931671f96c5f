//! The options of a connection as an object (`PodExecOptions` and others), for admission plugins.

use listwatch_json::{Map, Value};
use listwatch_registry::Subresource;
use listwatch_wire::query::{Query, encode_path_segment};

/// Returns the options of a connection as an object, for admission plugins: `PodExecOptions`, `PodAttachOptions`,
/// `PodPortForwardOptions` or one of the three `…ProxyOptions`. Empty fields are omitted. `path` is the
/// decoded rest of a proxied path. The handler of the connection rejects invalid options later.
pub fn connect_options(subresource: &Subresource, kind: &str, query: &Query<'_>, path: &str) -> Map {
    let mut options = Map::new();
    let mut set = |name: &str, value: Value| drop(options.insert(name, value));
    let kind = match subresource {
        Subresource::Exec => "PodExecOptions".to_owned(),
        Subresource::Attach => "PodAttachOptions".to_owned(),
        Subresource::PortForward => "PodPortForwardOptions".to_owned(),
        _ => format!("{kind}ProxyOptions"),
    };
    set("kind", kind.into());
    set("apiVersion", "v1".into());
    match subresource {
        Subresource::Exec | Subresource::Attach => {
            for name in ["stdin", "stdout", "stderr", "tty"] {
                if query.bool(name).unwrap_or_default() {
                    set(name, true.into());
                }
            }
            if let Some(container) = query.get("container").filter(|name| !name.is_empty()) {
                set("container", container.into());
            }
            let command: Vec<Value> = query.all("command").map(Value::from).collect();
            if *subresource == Subresource::Exec && !command.is_empty() {
                set("command", command.into());
            }
        }
        Subresource::PortForward => {
            let ports = query.all("ports").flat_map(|value| value.split(','));
            let ports: Vec<Value> = ports.filter_map(|port| port.parse::<u16>().ok()).map(Value::from).collect();
            if !ports.is_empty() {
                set("ports", ports.into());
            }
        }
        _ if !path.is_empty() => set("path", path.into()),
        _ => {}
    }
    options
}

/// Returns the query of a client that would have these options. Admission plugins can change options.
pub fn query_of_options(options: &Map) -> String {
    let mut query = String::new();
    for (name, value) in options.iter() {
        let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        for value in values.iter().filter(|value| !value.is_null()) {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            query.push_str(&format!("{}={}&", encode_path_segment(name.as_str()), encode_path_segment(&value)));
        }
    }
    query
}
