//! Package `filesystem`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::json::{self, is_default};
use super::messages;

pub(crate) use super::process::Empty;

/// A moment.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct Timestamp {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

messages! {
    EntryInfo {
        #[prost(string, tag = "1")] pub(crate) name: String,
        #[serde(rename = "type", with = "file_type")]
        #[prost(enumeration = "FileType", tag = "2")] pub(crate) kind: i32,
        #[prost(string, tag = "3")] pub(crate) path: String,
        #[serde(with = "json::int64")]
        #[prost(int64, tag = "4")] pub(crate) size: i64,
        #[prost(uint32, tag = "5")] pub(crate) mode: u32,
        #[prost(string, tag = "6")] pub(crate) permissions: String,
        #[prost(string, tag = "7")] pub(crate) owner: String,
        #[prost(string, tag = "8")] pub(crate) group: String,
        #[serde(with = "json::time", skip_serializing_if = "Option::is_none")]
        #[prost(message, optional, tag = "9")] pub(crate) modified_time: Option<Timestamp>,
        #[serde(skip_serializing_if = "Option::is_none")]
        #[prost(string, optional, tag = "10")] pub(crate) symlink_target: Option<String>,
        #[serde(skip_serializing_if = "is_default")]
        #[prost(btree_map = "string, string", tag = "11")] pub(crate) metadata: BTreeMap<String, String>,
        #[serde(skip_serializing_if = "is_default")]
        #[prost(bool, tag = "12")] pub(crate) is_symlink: bool,
    }
    /// A request about one path: `Stat`, `MakeDir`, `Remove`.
    PathRequest {
        #[prost(string, tag = "1")] pub(crate) path: String,
    }
    /// An answer with one entry: `Stat`, `MakeDir`, `Move`.
    EntryResponse {
        #[prost(message, optional, tag = "1")] pub(crate) entry: Option<EntryInfo>,
    }
    MoveRequest {
        #[prost(string, tag = "1")] pub(crate) source: String,
        #[prost(string, tag = "2")] pub(crate) destination: String,
    }
    ListDirRequest {
        #[prost(string, tag = "1")] pub(crate) path: String,
        #[prost(uint32, tag = "2")] pub(crate) depth: u32,
    }
    ListDirResponse {
        #[serde(skip_serializing_if = "is_default")]
        #[prost(message, repeated, tag = "1")] pub(crate) entries: Vec<EntryInfo>,
    }
    /// `WatchDir` and `CreateWatcher`.
    WatchRequest {
        #[prost(string, tag = "1")] pub(crate) path: String,
        #[prost(bool, tag = "2")] pub(crate) recursive: bool,
        #[serde(alias = "include_entry")]
        #[prost(bool, tag = "3")] pub(crate) include_entry: bool,
        #[serde(alias = "allow_network_mounts")]
        #[prost(bool, tag = "4")] pub(crate) allow_network_mounts: bool,
    }
    FilesystemEvent {
        #[prost(string, tag = "1")] pub(crate) name: String,
        #[serde(rename = "type", with = "event_type")]
        #[prost(enumeration = "EventType", tag = "2")] pub(crate) kind: i32,
        #[serde(skip_serializing_if = "Option::is_none")]
        #[prost(message, optional, tag = "3")] pub(crate) entry: Option<EntryInfo>,
    }
    WatchDirResponse {
        #[serde(flatten)]
        #[prost(oneof = "Watched", tags = "1, 2, 3")] pub(crate) event: Option<Watched>,
    }
    CreateWatcherResponse {
        #[prost(string, tag = "1")] pub(crate) watcher_id: String,
    }
    /// `GetWatcherEvents` and `RemoveWatcher`.
    WatcherRequest {
        #[serde(alias = "watcher_id")]
        #[prost(string, tag = "1")] pub(crate) watcher_id: String,
    }
    GetWatcherEventsResponse {
        #[serde(skip_serializing_if = "is_default")]
        #[prost(message, repeated, tag = "1")] pub(crate) events: Vec<FilesystemEvent>,
    }
}

/// One message of a watch.
#[expect(clippy::large_enum_variant, reason = "the others are rare, and few wait at once")]
#[derive(Clone, PartialEq, prost::Oneof, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Watched {
    #[prost(message, tag = "1")]
    Start(Empty),
    #[prost(message, tag = "2")]
    Filesystem(FilesystemEvent),
    #[prost(message, tag = "3")]
    Keepalive(Empty),
}

/// The kind of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum FileType {
    Unspecified = 0,
    File = 1,
    Directory = 2,
    Symlink = 3,
}

/// The kind of change of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum EventType {
    Unspecified = 0,
    Create = 1,
    Write = 2,
    Remove = 3,
    Rename = 4,
    Chmod = 5,
}

json::names!(file_type, FileType {
    Unspecified = "FILE_TYPE_UNSPECIFIED",
    File = "FILE_TYPE_FILE",
    Directory = "FILE_TYPE_DIRECTORY",
    Symlink = "FILE_TYPE_SYMLINK",
});
json::names!(event_type, EventType {
    Unspecified = "EVENT_TYPE_UNSPECIFIED",
    Create = "EVENT_TYPE_CREATE",
    Write = "EVENT_TYPE_WRITE",
    Remove = "EVENT_TYPE_REMOVE",
    Rename = "EVENT_TYPE_RENAME",
    Chmod = "EVENT_TYPE_CHMOD",
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_as_the_clients_read_it() {
        let entry = EntryInfo {
            name: "a".into(),
            kind: FileType::File.into(),
            size: 5,
            modified_time: Some(Timestamp { seconds: 1, nanos: 500_000_000 }),
            ..EntryInfo::default()
        };
        let text = serde_json::to_value(&entry).unwrap();
        assert_eq!((&text["type"], &text["size"]), (&"FILE_TYPE_FILE".into(), &"5".into()));
        assert_eq!(text["modifiedTime"], "1970-01-01T00:00:01.500Z");
        let event = FilesystemEvent { kind: EventType::Chmod.into(), ..FilesystemEvent::default() };
        let text =
            serde_json::to_value(WatchDirResponse { event: Some(Watched::Filesystem(event)) }).unwrap();
        assert_eq!(text["filesystem"]["type"], "EVENT_TYPE_CHMOD");
        let request: WatchRequest =
            serde_json::from_str(r#"{"path":"x","recursive":true,"includeEntry":true}"#).unwrap();
        assert!(request.recursive && request.include_entry && !request.allow_network_mounts);
    }
}
