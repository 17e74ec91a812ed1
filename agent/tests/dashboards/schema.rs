//! Dashboards are what Grafana's own JSON schema allows: the dashboard, every panel's options, every query.
//!
//! A validator of the part of JSON Schema that those files use; anything else in them fails loudly. One departure: the
//! schema makes what an override matches and sets an object, while Grafana takes any value there, such as a field's name
//! and a unit's.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::documents;

struct Schema(Value);

impl Schema {
    fn open(name: &str) -> Schema {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dashboards/schema");
        let text =
            fs::read_to_string(folder.join(format!("{name}.json"))).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut schema: Value = serde_json::from_str(&text).unwrap();
        for anything in [
            "DynamicConfigValue/properties/value",
            "MatcherConfig/properties/options",
        ] {
            if let Some(value) = schema.pointer_mut(&format!("/definitions/{anything}")) {
                *value = Value::Object(serde_json::Map::new());
            }
        }
        Schema(schema)
    }

    fn has(&self, definition: &str) -> bool {
        !self.0["definitions"][definition].is_null()
    }

    /// What is wrong with `value` as a `definition`.
    fn check(&self, definition: &str, value: &Value) -> Vec<String> {
        let mut wrong = Vec::new();
        self.walk(&self.0["definitions"][definition], value, definition, &mut wrong);
        wrong
    }

    fn walk(&self, schema: &Value, value: &Value, at: &str, wrong: &mut Vec<String>) {
        for (keyword, rule) in schema.as_object().expect("a schema is an object") {
            match keyword.as_str() {
                "$ref" => {
                    let name = rule.as_str().unwrap().strip_prefix("#/definitions/").unwrap();
                    self.walk(&self.0["definitions"][name], value, at, wrong);
                }
                "type" if !is(rule.as_str().unwrap(), value) => wrong.push(format!("{at}: {value} is no {rule}")),
                "enum" if !rule.as_array().unwrap().contains(value) => {
                    wrong.push(format!("{at}: {value} is none of {rule}"))
                }
                "const" if rule != value => wrong.push(format!("{at}: {value} is not {rule}")),
                "required" => {
                    for name in rule.as_array().unwrap() {
                        if value.is_object() && value.get(name.as_str().unwrap()).is_none() {
                            wrong.push(format!("{at}: {name} is missing"));
                        }
                    }
                }
                "properties" => {
                    for (name, inner) in rule.as_object().unwrap() {
                        if let Some(inner_value) = value.get(name) {
                            self.walk(inner, inner_value, &format!("{at}.{name}"), wrong);
                        }
                    }
                }
                "additionalProperties" => self.others(schema, rule, value, at, wrong),
                "items" => {
                    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.walk(rule, item, &format!("{at}[{index}]"), wrong);
                    }
                }
                "allOf" => rule
                    .as_array()
                    .unwrap()
                    .iter()
                    .for_each(|one| self.walk(one, value, at, wrong)),
                "anyOf" | "oneOf" => self.one_of(rule.as_array().unwrap(), value, at, wrong),
                "minimum" if value.as_f64() < rule.as_f64() => wrong.push(format!("{at}: {value} is less than {rule}")),
                "maximum" if value.as_f64() > rule.as_f64() => wrong.push(format!("{at}: {value} is more than {rule}")),
                "exclusiveMinimum" if value.as_f64() <= rule.as_f64() => {
                    wrong.push(format!("{at}: {value} is not above {rule}"))
                }
                "exclusiveMaximum" if value.as_f64() >= rule.as_f64() => {
                    wrong.push(format!("{at}: {value} is not below {rule}"))
                }
                "minLength" if (value.as_str().unwrap_or_default().len() as u64) < rule.as_u64().unwrap() => {
                    wrong.push(format!("{at}: {value} is too short"));
                }
                "type" | "enum" | "const" | "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum"
                | "minLength" => {}
                "description" | "default" | "format" | "deprecated" | "x-deprecation-message" => {}
                other => panic!("{at}: a keyword this validator does not know: {other}"),
            }
        }
    }

    fn others(&self, schema: &Value, rule: &Value, value: &Value, at: &str, wrong: &mut Vec<String>) {
        for (name, inner) in value.as_object().into_iter().flatten() {
            if schema["properties"].get(name).is_some() {
                continue;
            }
            match rule {
                Value::Bool(false) => wrong.push(format!("{at}: {name} is not known")),
                Value::Bool(true) => {}
                rule => self.walk(rule, inner, &format!("{at}.{name}"), wrong),
            }
        }
    }

    /// The complaints of the choice that fits best are the ones that help.
    fn one_of(&self, choices: &[Value], value: &Value, at: &str, wrong: &mut Vec<String>) {
        let complaints = choices.iter().map(|choice| {
            let mut wrong = Vec::new();
            self.walk(choice, value, at, &mut wrong);
            wrong
        });
        wrong.extend(complaints.min_by_key(Vec::len).unwrap());
    }
}

fn is(kind: &str, value: &Value) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        "null" => value.is_null(),
        other => panic!("no type {other}"),
    }
}

#[test]
fn dashboards_are_what_grafanas_schema_allows() {
    let (whole, queries) = (Schema::open("dashboard"), Schema::open("prometheus"));
    let mut wrong = Vec::new();
    for dashboard in documents::dashboards() {
        let mut note = |complaints: Vec<String>| {
            wrong.extend(
                complaints
                    .into_iter()
                    .map(|complaint| format!("{}: {complaint}", dashboard.file)),
            );
        };
        note(whole.check("Dashboard", &dashboard.json));
        for panel in dashboard.panels() {
            let kind = Schema::open(panel["type"].as_str().unwrap());
            note(kind.check("Options", &panel["options"]));
            let custom = &panel["fieldConfig"]["defaults"]["custom"];
            if kind.has("FieldConfig") && !custom.is_null() {
                note(kind.check("FieldConfig", custom));
            }
            for target in panel["targets"].as_array().unwrap() {
                note(queries.check("Dataquery", target));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn the_validator_finds_what_is_wrong() {
    let schema = Schema::open("dashboard");
    let original = documents::dashboards().remove(0).json;
    assert_eq!(schema.check("Dashboard", &original), Vec::<String>::new());
    let panel = original["panels"]
        .as_array()
        .unwrap()
        .iter()
        .position(|panel| panel["type"] != "row")
        .unwrap();
    let changes: [&dyn Fn(&mut Value); 5] = [
        &|json| json["titel"] = "x".into(),
        &|json| json["schemaVersion"] = "39".into(),
        &|json| json["graphTooltip"] = 7.into(),
        &|json| json["panels"][panel]["gridPos"]["w"] = 25.into(),
        &|json| json["panels"][panel]["fieldConfig"]["defaults"]["uint"] = "s".into(),
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut json = original.clone();
        change(&mut json);
        assert!(!schema.check("Dashboard", &json).is_empty(), "change {number}");
    }
}
