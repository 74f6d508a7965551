use super::*;

const SESSION: &str = "ses_one";

fn sent(output: &Output) -> Vec<HttpRequest> {
    output.lines.iter().map(|line| HttpRequest::of_line(line).unwrap()).collect()
}

fn paths(output: &Output) -> Vec<String> {
    sent(output).iter().map(|request| request.path.split('?').next().unwrap().to_owned()).collect()
}

fn hear(state: &mut OpencodeState, kind: &str, about: Value) -> Output {
    state.step(Input::Line(&json!({ "type": kind, "properties": about }).to_string()))
}

fn answered(state: &mut OpencodeState, status: u16, body: Value) -> Output {
    state.step(Input::Answered(status, &body.to_string()))
}

fn part(id: &str, message: &str, more: Value) -> Value {
    let mut part = json!({ "id": id, "messageID": message, "sessionID": SESSION });
    part.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "sessionID": SESSION, "part": part })
}

fn message(id: &str, more: Value) -> Value {
    let mut info = json!({ "id": id, "sessionID": SESSION, "role": "assistant", "parentID": "msg_1" });
    info.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "sessionID": SESSION, "info": info })
}

fn texts(output: &Output) -> Vec<String> {
    output.events.iter().map(|event| event.data["text"].as_str().unwrap_or_default().to_owned()).collect()
}

/// A session that works on the message 12, which OpenCode knows as `msg_1`, and answers with `msg_2`.
fn working() -> OpencodeState {
    let mut state = OpencodeState::default();
    state.step(Input::Begun("/work", "se1"));
    assert_eq!(state.step(Input::Message(12, "mend it")), Output::default(), "it waits for the stream");
    assert_eq!(state.listens().unwrap().path, "/event?directory=/work");
    state.step(Input::Dialing);
    assert_eq!(paths(&state.step(Input::Listening(200))), ["/session"]);
    let prompt = sent(&answered(&mut state, 200, json!({ "id": SESSION }))).remove(0);
    assert_eq!(prompt.path, "/session/ses_one/prompt_async?directory=/work");
    assert_eq!(prompt.body.unwrap()["parts"][0]["metadata"], json!({ "atoll": 12 }));
    assert_eq!(state.step(Input::Answered(204, "")), Output::default());
    let ours = json!({ "type": "text", "text": "mend it", "metadata": { "atoll": 12 } });
    assert_eq!(hear(&mut state, "message.part.updated", part("prt_1", "msg_1", ours)).events, []);
    hear(&mut state, "message.updated", message("msg_2", json!({})));
    state
}

#[test]
fn a_turn() {
    let mut state = working();
    let begun = json!({ "type": "text", "text": "" });
    hear(&mut state, "message.part.updated", part("prt_2", "msg_2", begun));
    let delta = |text: &str| json!({ "sessionID": SESSION, "messageID": "msg_2", "partID": "prt_2", "field": "text", "delta": text });
    assert_eq!(texts(&hear(&mut state, "message.part.delta", delta("I run "))), ["I run "]);
    let whole = json!({ "type": "text", "text": "I run it" });
    assert_eq!(
        texts(&hear(&mut state, "message.part.updated", part("prt_2", "msg_2", whole.clone()))),
        ["it"]
    );
    assert_eq!(hear(&mut state, "message.part.updated", part("prt_2", "msg_2", whole)).events, []);
    let tool = json!({ "type": "tool", "tool": "bash", "callID": "c", "state": { "status": "completed", "output": "ok" } });
    let told = hear(&mut state, "message.part.updated", part("prt_3", "msg_2", tool));
    assert_eq!(
        told.events[0].data,
        json!({ "toolCallId": "c", "name": "bash", "status": "completed", "output": "ok" })
    );
    // Events that are not ours: another session, another client's message.
    let other = json!({ "sessionID": "ses_two", "part": { "id": "prt_4", "messageID": "msg_2", "type": "text", "text": "x" } });
    assert_eq!(hear(&mut state, "message.part.updated", other).events, []);
    let mine = json!({ "type": "text", "text": "x" });
    assert_eq!(hear(&mut state, "message.part.updated", part("prt_5", "msg_9", mine)).events, []);
    hear(&mut state, "message.updated", message("msg_2", json!({ "finish": "stop" })));
    let end = hear(&mut state, "session.idle", json!({ "sessionID": SESSION })).end;
    assert_eq!(end, Some(TurnEnd::Done("stop".into())));
    assert_eq!(state.listens(), None);
    // The next message is for the same session.
    state.step(Input::Message(20, "and now?"));
    state.step(Input::Dialing);
    assert_eq!(paths(&state.step(Input::Listening(200))), ["/session/ses_one"]);
    assert_eq!(paths(&answered(&mut state, 200, json!({}))), ["/session/ses_one/prompt_async"]);
}

#[test]
fn what_nobody_listened_to_is_told_once() {
    let mut state = working();
    let half = json!({ "type": "text", "text": "one" });
    hear(&mut state, "message.part.updated", part("prt_2", "msg_2", half));
    state.step(Input::Silent(false));
    assert!(state.step(Input::Dialing).anew);
    state.step(Input::Listening(200));
    let asked = answered(&mut state, 200, json!({}));
    assert_eq!(paths(&asked), ["/session/status", "/session/ses_one/message", "/permission"]);
    // A piece that is in the whole, too, or not.
    let delta = json!({ "sessionID": SESSION, "messageID": "msg_2", "partID": "prt_2", "field": "text", "delta": " two" });
    assert_eq!(hear(&mut state, "message.part.delta", delta.clone()).events, []);
    answered(&mut state, 200, json!({ SESSION: { "type": "busy" } }));
    let info = message("msg_2", json!({}))["info"].clone();
    let parts = json!([part("prt_2", "msg_2", json!({ "type": "text", "text": "one two" }))["part"]]);
    assert_eq!(texts(&answered(&mut state, 200, json!([{ "info": info, "parts": parts }]))), [" two"]);
    assert_eq!(hear(&mut state, "message.part.delta", delta).events, []);
    let permission =
        json!([{ "id": "per_1", "sessionID": SESSION, "permission": "bash", "patterns": ["ls"] }]);
    assert_eq!(answered(&mut state, 200, permission).events[0].data["title"], "bash: ls");
    let whole = json!({ "type": "text", "text": "one two three" });
    assert_eq!(texts(&hear(&mut state, "message.part.updated", part("prt_2", "msg_2", whole))), [" three"]);
    // It had ended meanwhile.
    state.step(Input::Dialing);
    state.step(Input::Listening(200));
    answered(&mut state, 200, json!({}));
    answered(&mut state, 200, json!({}));
    let ended = answered(&mut state, 200, json!([{ "info": info, "parts": [] }])).end;
    assert_eq!(ended, Some(TurnEnd::Done("completed".into())));
}

#[test]
fn a_message_that_never_arrived_is_sent_once_more() {
    let mut state = working();
    state.turn.as_mut().unwrap().user = None;
    for again in [true, false] {
        state.step(Input::Dialing);
        state.step(Input::Listening(200));
        answered(&mut state, 200, json!({}));
        answered(&mut state, 200, json!({}));
        let asked = paths(&answered(&mut state, 200, json!([])));
        assert_eq!(asked.iter().any(|path| path.ends_with("prompt_async")), again);
    }
}

#[test]
fn permissions_are_asked_for_and_answered_once() {
    let mut state = working();
    let asks = |id: &str, session: &str| json!({ "id": id, "sessionID": session, "permission": "bash", "patterns": ["rm"] });
    assert_eq!(
        hear(&mut state, "permission.asked", asks("per_1", SESSION)).events[0].kind,
        EventKind::Approval
    );
    assert_eq!(hear(&mut state, "permission.asked", asks("per_1", SESSION)).events, [], "once");
    assert_eq!(hear(&mut state, "permission.asked", asks("per_2", "ses_two")).events, []);
    for bad in ["per_../x", "per_", "xyz_1", "per_1/abort?"] {
        assert_eq!(hear(&mut state, "permission.asked", asks(bad, SESSION)).events, [], "{bad}");
    }
    hear(&mut state, "session.created", json!({ "info": { "id": "ses_two", "parentID": SESSION } }));
    assert_eq!(hear(&mut state, "permission.asked", asks("per_2", "ses_two")).events.len(), 1);
    let answer = sent(&state.step(Input::Answer("per_1", "once"))).remove(0);
    assert_eq!(
        (answer.path.as_str(), answer.body),
        ("/permission/per_1/reply?directory=/work", Some(json!({ "reply": "once" })))
    );
    // Until it is answered it is told again.
    assert_eq!(paths(&state.step(Input::Dialing)), ["/permission/per_1/reply"]);
    state.step(Input::Answered(404, ""));
    assert_eq!(paths(&state.step(Input::Dialing)), [""; 0]);
    let elsewhere = json!({ "sessionID": "ses_two", "requestID": "per_2", "reply": "reject" });
    assert_eq!(hear(&mut state, "permission.replied", elsewhere).events[0].kind, EventKind::Answer);
    assert_eq!(state.approvals, []);
    let question = json!({ "id": "que_1", "sessionID": SESSION, "questions": [{ "question": "Which?", "options": [{ "label": "A b" }, { "label": "C" }] }] });
    assert_eq!(
        hear(&mut state, "question.asked", question).events[0].data["options"][1],
        json!({ "id": "2", "name": "C" })
    );
    let answer = sent(&state.step(Input::Answer("que_1", "1"))).remove(0);
    assert_eq!(answer.body, Some(json!({ "answers": [["A b"]] })));
    let open = json!({ "id": "que_2", "sessionID": SESSION, "questions": [] });
    assert_eq!(paths(&hear(&mut state, "question.asked", open)), ["/question/que_2/reject"]);
}

#[test]
fn what_goes_wrong_is_told_apart() {
    for (error, code) in
        [("ProviderAuthError", "auth_required"), ("APIError", "model_error"), ("X", "agent_error")]
    {
        let mut state = working();
        let error = json!({ "name": error, "data": { "message": "no" } });
        hear(&mut state, "session.error", json!({ "sessionID": SESSION, "error": error }));
        let end = hear(&mut state, "session.idle", json!({ "sessionID": SESSION })).end;
        assert_eq!(end, Some(TurnEnd::Failed(code.into(), "no".into())));
    }
    let mut state = working();
    assert_eq!(paths(&state.step(Input::Cancel)), ["/session/ses_one/abort"]);
    let error = json!({ "name": "MessageAbortedError", "data": { "message": "Aborted" } });
    hear(&mut state, "session.error", json!({ "sessionID": SESSION, "error": error }));
    let end = hear(&mut state, "session.idle", json!({ "sessionID": SESSION })).end;
    assert_eq!(end, Some(TurnEnd::Done("cancelled".into())));
    for (status, body) in
        [(500, json!({ "message": "no" })), (200, json!({ "id": "../x" })), (200, json!("x"))]
    {
        let mut state = OpencodeState::default();
        state.step(Input::Begun("/", "se1"));
        state.step(Input::Message(1, "x"));
        state.step(Input::Dialing);
        state.step(Input::Listening(200));
        assert!(matches!(answered(&mut state, status, body).end, Some(TurnEnd::Failed(..))));
        assert_eq!(answered(&mut state, 200, json!({})), Output::default(), "nothing was asked");
    }
    let mut state = OpencodeState::default();
    state.step(Input::Begun("/", "se1"));
    state.step(Input::Message(1, "x"));
    assert!(
        matches!(state.step(Input::Listening(302)).end, Some(TurnEnd::Failed(code, _)) if code == "protocol")
    );
}

#[test]
fn what_is_kept_of_a_turn_is_bounded() {
    let mut state = working();
    for number in 0..2000 {
        let id = format!("prt_{number:06}");
        let said = json!({ "type": "text", "text": "x" });
        assert_eq!(hear(&mut state, "message.part.updated", part(&id, "msg_2", said)).events.len(), 1);
        hear(&mut state, "message.updated", message(&format!("msg_{number:06}"), json!({})));
        hear(
            &mut state,
            "session.created",
            json!({ "info": { "id": format!("ses_{number}"), "parentID": SESSION } }),
        );
        hear(&mut state, "message.updated", message("msg_2", json!({})));
    }
    let told = part("prt_000001", "msg_2", json!({ "type": "text", "text": "xy" }));
    assert_eq!(hear(&mut state, "message.part.updated", told).events, [], "it was told, and is forgotten");
    let kept = serde_json::to_string(&state).unwrap();
    assert!(kept.len() < 64 << 10, "{}", kept.len());
    assert_eq!(serde_json::from_str::<OpencodeState>(&kept).unwrap(), state);
}
