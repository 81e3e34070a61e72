//! Every route answers what the runtime answers, in the shape of the clients it is for.

#![allow(clippy::unwrap_used, reason = "a failed assumption should stop the test at once")]

mod common;

use base64::Engine as _;
use common::{start, tiny};
use qbert_model::Head;
use qbert_runtime::{EmbedOptions, Pooling, Session};
use serde_json::{Value, json};

fn normalized(session: &Session, texts: &[&str]) -> Value {
    let found = session.embed(texts, EmbedOptions::default().pooling(Pooling::Mean).normalize(true)).unwrap();
    Value::from(found.vectors.rows().map(numbers).collect::<Vec<_>>())
}

/// Numbers as they come out of a response: the shortest text that is this f32.
fn numbers(values: &[f32]) -> Value {
    serde_json::from_str(&serde_json::to_string(values).unwrap()).unwrap()
}

#[test]
fn labels_are_those_of_the_runtime_best_first() {
    let (server, session) = (start(), tiny::session_for(Head::SequenceClassification, "sst2"));
    let expected = session.classify(&["two owls"]).unwrap().remove(0);
    let one = server.ask("/predict", &json!({ "inputs": "two owls" }));
    assert_eq!(one[0], json!({ "score": expected.probability, "label": expected.label }));
    assert!(one[0]["score"].as_f64() >= one[1]["score"].as_f64());
    let raw = server.ask("/predict", &json!({ "inputs": [["two owls"]], "raw_scores": true }));
    let logits: Vec<f64> = expected.scores.iter().map(|score| f64::from(score.logit)).collect();
    assert!(raw[0].as_array().unwrap().iter().all(|own| logits.contains(&own["score"].as_f64().unwrap())), "{raw}");
    let many = server.ask("/predict", &json!({ "inputs": ["two owls", "the owl"] }));
    assert_eq!(many.as_array().unwrap().len(), 2, "a model of single texts takes two texts, not a pair");
    let refused = server.post("/predict", &json!({ "inputs": [["two", "owls"]] }));
    assert_eq!((refused.status, &refused.json()["error_type"]), (422, &json!("wrong_task")));
    assert!(!refused.text().contains(".qbert"), "paths of the machine stay inside: {}", refused.text());
}

#[test]
fn entities_and_answers_have_places() {
    let server = start();
    let text = "Ostby saw two owls, über Ostby";
    let found = server.ask("/entities", &json!({ "inputs": text, "model": "entities" }));
    let expected = tiny::session_for(Head::TokenClassification, "ner").tag_texts(&[text]).unwrap();
    assert_eq!(found, serde_json::to_value(&expected).unwrap());
    let words = server.ask("/models/entities/entities", &json!({ "inputs": [["Ostby", "saw"]] }));
    assert_eq!(words[0]["tags"].as_array().unwrap().len(), 2);
    let question = json!({ "question": "who saw the owl ?", "context": "ostby saw two owls ." });
    let found = server.ask("/models/answers/answer", &json!({ "inputs": question }));
    let session = tiny::session_for(Head::QuestionAnswering, "qa");
    let expected = session.answer(&[("who saw the owl ?", "ostby saw two owls .")]).unwrap();
    assert_eq!(found, serde_json::to_value(&expected).unwrap());
    let hub = server.ask("/models/answers/", &json!({ "inputs": question }));
    assert_eq!(hub["answer"], found[0]["answers"][0]["text"]);
    assert_eq!(hub["start"], found[0]["answers"][0]["characters"]["start"]);
    let hub = server.ask("/models/entities", &json!({ "inputs": text }));
    assert_eq!(hub.as_array().unwrap().len(), expected_entities(text));
}

fn expected_entities(text: &str) -> usize {
    tiny::session_for(Head::TokenClassification, "ner").tag_texts(&[text]).unwrap()[0].entities.len()
}

#[test]
fn embeddings_in_every_shape() {
    let server = start();
    let session = tiny::session_for(Head::None, "");
    let texts = ["two owls", "the owl of ostby"];
    let expected = normalized(&session, &texts);
    assert_eq!(server.ask("/embed", &json!({ "inputs": texts, "model": "vectors" })), expected);
    assert_eq!(server.ask("/models/vectors", &json!({ "inputs": texts })), expected);
    let openai = server.ask("/v1/embeddings", &json!({ "input": texts, "model": "vectors" }));
    assert_eq!(openai["data"][1]["embedding"], expected[1]);
    assert_eq!(openai["usage"]["total_tokens"], 3 + 2 + 4 + 2);
    let coded =
        server.ask("/v1/embeddings", &json!({ "input": "two owls", "model": "vectors", "encoding_format": "base64" }));
    let bytes =
        base64::engine::general_purpose::STANDARD.decode(coded["data"][0]["embedding"].as_str().unwrap()).unwrap();
    let values: Vec<f32> = bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    assert_eq!(numbers(&values), expected[0]);
    let short = server.ask("/v1/embeddings", &json!({ "input": "two owls", "model": "vectors", "dimensions": 5 }));
    let short: Vec<f64> = serde_json::from_value(short["data"][0]["embedding"].clone()).unwrap();
    assert_eq!(short.len(), 5);
    assert!((short.iter().map(|value| value * value).sum::<f64>() - 1.0).abs() < 1e-6);
    let too_many = server.post("/v1/embeddings", &json!({ "input": "two", "model": "vectors", "dimensions": 25 }));
    assert_eq!(too_many.status, 422);
    assert!(too_many.json()["error"]["hint"].as_str().unwrap().contains("24"), "OpenAI's shape under /v1");
    let raw = server.ask("/embed", &json!({ "inputs": "two owls", "model": "vectors", "normalize": false }));
    assert_eq!(raw[0], numbers(&session.embed(&["two owls"], Pooling::Mean).unwrap().vectors[0]));
    let all = server.ask("/embed_all", &json!({ "inputs": "two owls", "model": "vectors" }));
    assert_eq!(all[0].as_array().unwrap().len(), 5, "two special tokens and three pieces");
    let compared = json!({ "source_sentence": "two owls", "sentences": ["two owls", "who ?"] });
    let cosines = server.ask("/similarity", &json!({ "inputs": compared, "model": "vectors" }));
    assert!(
        (cosines[0].as_f64().unwrap() - 1.0).abs() < 1e-6 && cosines[1].as_f64() < cosines[0].as_f64(),
        "{cosines}"
    );
}

#[test]
fn rankings_are_those_of_the_model() {
    let server = start();
    let texts = ["two owls", "who saw the owl ?", "ostby"];
    let ranks = server.ask("/models/ranks/rerank", &json!({ "query": "the owl", "texts": texts, "return_text": true }));
    let ranks = ranks.as_array().unwrap();
    assert!(ranks.windows(2).all(|pair| pair[0]["score"].as_f64() >= pair[1]["score"].as_f64()));
    assert!(ranks.iter().all(|rank| rank["text"] == texts[rank["index"].as_u64().unwrap() as usize]));
    let documents = json!([{ "text": texts[0] }, texts[1], texts[2]]);
    let body =
        json!({ "model": "ranks", "query": "the owl", "documents": documents, "top_n": 2, "return_documents": true });
    let jina = server.ask("/v1/rerank", &body);
    assert_eq!(jina["results"].as_array().unwrap().len(), 2);
    assert_eq!(jina["results"][0]["relevance_score"], ranks[0]["score"]);
    assert_eq!(jina["results"][0]["document"]["text"], ranks[0]["text"]);
    let refused = server.post("/rerank", &json!({ "query": "a", "texts": ["b"] }));
    assert_eq!((refused.status, &refused.json()["error"]), (422, &json!("the model is no reranker")));
}

#[test]
fn tokens_have_places_in_characters() {
    let server = start();
    let found = server.ask("/tokenize", &json!({ "inputs": "ü owls" }));
    let texts: Vec<&str> = found[0].as_array().unwrap().iter().map(|token| token["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["[CLS]", "[UNK]", "owl", "##s", "[SEP]"]);
    assert_eq!((&found[0][2]["start"], &found[0][2]["stop"]), (&json!(2), &json!(5)));
    assert_eq!((&found[0][0]["special"], &found[0][0]["start"]), (&json!(true), &Value::Null));
    let plain = server.ask("/tokenize", &json!({ "inputs": ["owl"], "add_special_tokens": false }));
    assert_eq!(plain[0].as_array().unwrap().len(), 1);
}

#[test]
fn kserve_in_json_and_in_binary() {
    let server = start();
    let metadata = server.get("/v2/models/labels").json();
    assert_eq!(metadata["outputs"][1]["name"], "probabilities");
    let input = json!({ "name": "text", "shape": [2, 1], "datatype": "BYTES", "data": [["two owls"], ["the owl"]] });
    let answer = server.ask("/v2/models/labels/infer", &json!({ "id": "7", "inputs": [input] }));
    assert_eq!((&answer["id"], &answer["outputs"][1]["shape"]), (&json!("7"), &json!([2, 2])));
    let head = json!({
        "inputs": [{ "name": "text", "shape": [1], "datatype": "BYTES", "parameters": { "binary_data_size": 12 } }],
        "outputs": [{ "name": "probabilities", "parameters": { "binary_data": true } }],
    })
    .to_string();
    let body = [head.as_bytes(), &8_u32.to_le_bytes(), b"two owls"].concat();
    let length = head.len().to_string();
    let response =
        server.request("POST", "/v2/models/labels/infer", &[("Inference-Header-Content-Length", &length)], &body);
    assert_eq!(response.status, 200, "{}", response.text());
    let json_bytes: usize = response.header("inference-header-content-length").unwrap().parse().unwrap();
    let tail = &response.body[json_bytes..];
    let values: Vec<f32> = tail.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    let expected: Vec<f32> = serde_json::from_value(answer["outputs"][1]["data"].clone()).unwrap();
    assert_eq!(values, expected[..2]);
    let vectors = json!({ "name": "text", "shape": [1], "datatype": "BYTES", "data": ["owl"] });
    let answer = server.ask("/v2/models/vectors/infer", &json!({ "inputs": [vectors] }));
    assert_eq!(answer["outputs"][0]["shape"], json!([1, 24]));
    let answer = server.ask(
        "/v2/models/answers/infer",
        &json!({ "inputs": [
        { "name": "context", "shape": [1], "datatype": "BYTES", "data": ["ostby saw two owls"] },
        { "name": "question", "shape": [1], "datatype": "BYTES", "data": ["who ?"] },
    ] }),
    );
    let answers: Value = serde_json::from_str(answer["outputs"][0]["data"][0].as_str().unwrap()).unwrap();
    assert!(answers[0]["text"].is_string());
    for (body, problem) in [
        (json!({ "inputs": [] }), "no input"),
        (json!({ "inputs": [{ "name": "text", "shape": [2], "datatype": "BYTES", "data": ["a"] }] }), "another number"),
        (json!({ "inputs": [{ "name": "text", "shape": [1], "datatype": "INT64", "data": [1] }] }), "not BYTES"),
        (
            json!({ "inputs": [{ "name": "text", "shape": [1], "datatype": "BYTES", "parameters": { "binary_data_size": 9 } }] }),
            "missing",
        ),
    ] {
        let response = server.post("/v2/models/labels/infer", &body);
        assert_eq!(response.status, 422);
        assert!(response.text().contains(problem), "{}", response.text());
    }
}

#[test]
fn the_server_says_what_it_is() {
    let server = start();
    let info = server.get("/info").json();
    assert_eq!((&info["model_id"], &info["max_input_length"]), (&json!("labels"), &json!(48)));
    assert_eq!(info["model_type"]["classifier"]["id2label"]["1"], "yes");
    assert_eq!(server.get("/models/vectors/info").json()["model_type"]["embedding"]["pooling"], "mean");
    let models = server.get("/v1/models").json();
    assert_eq!(models["data"].as_array().unwrap().len(), common::NAMES.len());
    assert_eq!(server.get("/v1/models/ranks").json()["id"], "ranks");
    assert_eq!(server.get("/v1/models/none").json()["error"]["code"], "unknown_model");
    server.ask("/predict", &json!({ "inputs": "two owls" }));
    let metrics = server.get("/metrics").text();
    for line in [
        r#"qbert_http_requests_total{route="/predict",status="200"} 1"#,
        r#"qbert_tokens_total{model="labels"} 5"#,
        "qbert_queue_tokens 0",
        r#"qbert_stage_duration_seconds_count{stage="queue"} 1"#,
    ] {
        assert!(metrics.contains(line), "no {line} in {metrics}");
    }
    assert!(metrics.ends_with("# EOF\n"));
    let document = server.get("/openapi.json").json();
    for path in ["/predict", "/entities", "/answer", "/v1/embeddings", "/v2/models/{model}/infer", "/health", "/"] {
        assert!(document["paths"][path].is_object(), "{path} is not described");
    }
    let docs = server.get("/docs/index.html");
    assert_eq!((docs.status, docs.header("content-encoding")), (200, Some("gzip")));
    assert!(
        docs.header("content-security-policy").unwrap().contains("connect-src 'self'"),
        "the page needs no network"
    );
    assert!(server.get("/docs/swagger-initializer.js").text().contains("/openapi.json"));
    let page = server.get("/");
    assert_eq!(page.status, 200);
    assert!(page.header("content-security-policy").unwrap().starts_with("default-src 'none'"));
    assert!(!page.header("content-security-policy").unwrap().contains("unsafe"));
}

#[test]
fn requests_have_ids() {
    let server = start();
    let named = server.request("GET", "/health", &[("X-Request-Id", "abc-1")], b"");
    assert_eq!(named.header("x-request-id"), Some("abc-1"));
    let hostile = server.request("GET", "/health", &[("X-Request-Id", "a b\tc")], b"");
    assert!(!hostile.header("x-request-id").unwrap().contains(' '));
}
