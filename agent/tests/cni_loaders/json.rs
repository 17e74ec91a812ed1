//! A JSON tree that can also be wrong: duplicate and ordered keys, and raw bytes in place of a value.

use serde_json::Value;

#[derive(Clone, Debug)]
pub enum Json {
    /// Written as it is: a literal, a number, or anything else.
    Raw(Vec<u8>),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    pub fn raw(text: &str) -> Json {
        Json::Raw(text.into())
    }

    pub fn parse(bytes: &[u8]) -> Option<Json> {
        serde_json::from_slice::<Value>(bytes).ok().map(Json::from)
    }

    pub fn render(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(&mut bytes);
        bytes
    }

    fn write(&self, into: &mut Vec<u8>) {
        match self {
            Json::Raw(bytes) => into.extend(bytes),
            Json::Text(text) => into.extend(serde_json::to_vec(text).unwrap()),
            Json::List(values) => {
                into.push(b'[');
                for (index, value) in values.iter().enumerate() {
                    into.extend((index > 0).then_some(b','));
                    value.write(into);
                }
                into.push(b']');
            }
            Json::Object(members) => {
                into.push(b'{');
                for (index, (key, value)) in members.iter().enumerate() {
                    into.extend((index > 0).then_some(b','));
                    into.extend(serde_json::to_vec(key).unwrap());
                    into.push(b':');
                    value.write(into);
                }
                into.push(b'}');
            }
        }
    }

    /// All values in it, itself first.
    pub fn count(&self) -> usize {
        1 + match self {
            Json::List(values) => values.iter().map(Json::count).sum(),
            Json::Object(members) => members.iter().map(|(_, value)| value.count()).sum(),
            Json::Raw(_) | Json::Text(_) => 0,
        }
    }

    /// The value of this number in the order of `count`.
    pub fn at(&mut self, number: usize) -> &mut Json {
        if number == 0 {
            return self;
        }
        let mut rest = number - 1;
        let children: Vec<&mut Json> = match self {
            Json::List(values) => values.iter_mut().collect(),
            Json::Object(members) => members.iter_mut().map(|(_, value)| value).collect(),
            Json::Raw(_) | Json::Text(_) => Vec::new(),
        };
        for child in children {
            let size = child.count();
            if rest < size {
                return child.at(rest);
            }
            rest -= size;
        }
        unreachable!("there are fewer values")
    }
}

impl From<Value> for Json {
    fn from(value: Value) -> Json {
        match value {
            Value::String(text) => Json::Text(text),
            Value::Array(values) => Json::List(values.into_iter().map(Json::from).collect()),
            Value::Object(members) => Json::Object(
                members
                    .into_iter()
                    .map(|(key, value)| (key, Json::from(value)))
                    .collect(),
            ),
            other => Json::Raw(other.to_string().into_bytes()),
        }
    }
}
