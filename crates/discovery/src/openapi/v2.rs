//! The OpenAPI 2.0 (Swagger) document of all resources.
//!
//! The document describes only PATCH, PUT and POST. Clients of version 2 read the parameters and media types of writes
//! from these operations. The document has a quarter of the full size.

use std::collections::BTreeMap;
use std::sync::Arc;

use listwatch_json::{Map, Value, json};

use super::paths::{self, Body, Operation, PARAMETERS, Path};
use super::schema::{self, KIND_EXTENSION, Models, Version};
use crate::version::KUBERNETES_VERSION;
use listwatch_registry::Resource;

pub(super) fn document(resources: &[Arc<Resource>]) -> Value {
    let mut group_versions: Vec<(String, String)> =
        resources.iter().map(|resource| (resource.group.clone(), resource.version.clone())).collect();
    group_versions.sort();
    group_versions.dedup();
    let mut models = Models::new(Version::Two, group_versions);
    let mut path_items = BTreeMap::new();
    for resource in resources {
        // No described operation returns a list.
        if resource.custom {
            models.of_list(resource);
        }
        for mut path in paths::of(resource) {
            path.operations.retain(|operation| matches!(operation.method, "post" | "put" | "patch"));
            if !path.operations.is_empty() {
                let item = path_item(resource, &path, &mut models);
                path_items.insert(path.path, item);
            }
        }
    }
    let parameters: Map =
        PARAMETERS.iter().map(|parameter| (parameter.name.to_owned(), query_parameter(parameter))).collect();
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": KUBERNETES_VERSION},
        "paths": path_items,
        "definitions": models.finish(),
        "parameters": parameters,
        "securityDefinitions": {
            "BearerToken": {
                "description": "Bearer token authentication",
                "type": "apiKey",
                "name": "authorization",
                "in": "header",
            },
        },
        "security": [{"BearerToken": []}],
    })
}

fn query_parameter(parameter: &paths::Parameter) -> Value {
    json!({
        "name": parameter.name,
        "in": "query",
        "type": parameter.type_,
        "description": parameter.description,
        "uniqueItems": true,
    })
}

fn parameter_reference(name: &str) -> Value {
    json!({"$ref": format!("#/parameters/{name}")})
}

fn path_item(resource: &Resource, path: &Path, models: &mut Models) -> Value {
    let mut item = Map::new();
    for operation in &path.operations {
        item.insert(operation.method.to_owned(), operation_value(resource, operation, models));
    }
    let mut parameters: Vec<Value> = path
        .parameters()
        .map(|name| {
            let description = match name {
                "namespace" => "the namespace of the object".to_owned(),
                _ => format!("the name of the {}", resource.kind),
            };
            json!({
                "name": name, "in": "path", "required": true, "type": "string",
                "description": description, "uniqueItems": true,
            })
        })
        .collect();
    parameters.push(parameter_reference("pretty"));
    item.insert("parameters", Value::Array(parameters));
    Value::Object(item)
}

fn operation_value(resource: &Resource, operation: &Operation, models: &mut Models) -> Value {
    let object = models.of_kind(&operation.kind, resource);
    let body = match operation.body {
        Body::Patch => models.of_patch(),
        _ => object.clone(),
    };
    let body = json!({
        "name": "body", "in": "body", "required": true, "schema": Version::Two.reference(&body),
    });
    // Old clients look for this parameter in the operation.
    let query = operation.query.iter().map(|name| match PARAMETERS.iter().find(|p| p.name == *name) {
        Some(parameter) if *name == "fieldValidation" => query_parameter(parameter),
        _ => parameter_reference(name),
    });
    let parameters: Vec<Value> = std::iter::once(body).chain(query).collect();
    let responses: Map = operation
        .codes
        .iter()
        .map(|code| {
            let schema = Version::Two.reference(&object);
            ((*code).to_owned(), json!({"description": paths::code_description(code), "schema": schema}))
        })
        .chain([("401".to_owned(), json!({"description": "Unauthorized"}))])
        .collect();
    json!({
        "description": operation.description,
        "operationId": operation.id,
        "tags": [paths::tag(resource)],
        "consumes": operation.consumes,
        "produces": ["application/json", "application/yaml"],
        "parameters": parameters,
        "responses": responses,
        "schemes": ["https"],
        "x-kubernetes-action": operation.action,
        KIND_EXTENSION: schema::kind_value(&operation.kind),
    })
}
