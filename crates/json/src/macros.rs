//! [`json!`](crate::json).

/// Makes a [`Value`](crate::Value) of JSON, in which values and names may be expressions.
///
/// ```
/// use listwatch_json::json;
/// let (name, key) = ("web", "app");
/// let pod = json!({
///     "metadata": { "name": name, "labels": { (key): "front" } },
///     "spec": { "containers": [], "priority": 1 + 1, "hostNetwork": null },
/// });
/// assert_eq!(pod["metadata"]["labels"]["app"], "front");
/// assert_eq!(pod.to_string(), r#"{"metadata":{"name":"web","labels":{"app":"front"}},"spec":{"containers":[],"priority":2,"hostNetwork":null}}"#);
/// ```
///
/// # Panics
/// If an expression cannot be written as JSON, such as a map whose names are not strings.
#[macro_export]
macro_rules! json {
    // The next item of a list: `null`, a list and an object are JSON; all else is an expression.
    (@items $to:ident) => {};
    (@items $to:ident null $(, $($rest:tt)*)?) => {
        $to.push($crate::Value::Null);
        $crate::json!(@items $to $($($rest)*)?);
    };
    (@items $to:ident [$($items:tt)*] $(, $($rest:tt)*)?) => {
        $to.push($crate::json!([$($items)*]));
        $crate::json!(@items $to $($($rest)*)?);
    };
    (@items $to:ident {$($members:tt)*} $(, $($rest:tt)*)?) => {
        $to.push($crate::json!({$($members)*}));
        $crate::json!(@items $to $($($rest)*)?);
    };
    (@items $to:ident $item:expr $(, $($rest:tt)*)?) => {
        $to.push($crate::json!($item));
        $crate::json!(@items $to $($($rest)*)?);
    };

    // The next member of an object. The tokens of its name are collected in parentheses until the colon.
    (@members $to:ident ()) => {};
    (@members $to:ident ($($name:tt)+) : null $(, $($rest:tt)*)?) => {
        let _ = $to.insert($($name)+, $crate::Value::Null);
        $crate::json!(@members $to () $($($rest)*)?);
    };
    (@members $to:ident ($($name:tt)+) : [$($items:tt)*] $(, $($rest:tt)*)?) => {
        let _ = $to.insert($($name)+, $crate::json!([$($items)*]));
        $crate::json!(@members $to () $($($rest)*)?);
    };
    (@members $to:ident ($($name:tt)+) : {$($members:tt)*} $(, $($rest:tt)*)?) => {
        let _ = $to.insert($($name)+, $crate::json!({$($members)*}));
        $crate::json!(@members $to () $($($rest)*)?);
    };
    (@members $to:ident ($($name:tt)+) : $value:expr $(, $($rest:tt)*)?) => {
        let _ = $to.insert($($name)+, $crate::json!($value));
        $crate::json!(@members $to () $($($rest)*)?);
    };
    (@members $to:ident ($($name:tt)*) $next:tt $($rest:tt)*) => {
        $crate::json!(@members $to ($($name)* $next) $($rest)*);
    };

    (null) => {
        $crate::Value::Null
    };
    ([]) => {
        $crate::Value::Array(::std::vec::Vec::new())
    };
    ([$($items:tt)+]) => {{
        let mut items = ::std::vec::Vec::new();
        $crate::json!(@items items $($items)+);
        $crate::Value::Array(items)
    }};
    ({}) => {
        $crate::Value::Object($crate::Map::new())
    };
    ({$($members:tt)+}) => {{
        let mut members = $crate::Map::new();
        $crate::json!(@members members () $($members)+);
        $crate::Value::Object(members)
    }};
    ($value:expr) => {
        $crate::to_value(&$value).expect("a value that can be written as JSON")
    };
}
