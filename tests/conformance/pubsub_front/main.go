// Google's own stand-in for Pub/Sub (pstest), reached as its REST interface is: JSON by the rules of protobuf, strict about fields.
package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"strings"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

var httpStatus = map[codes.Code]int{
	codes.InvalidArgument: 400, codes.Unauthenticated: 401, codes.PermissionDenied: 403, codes.NotFound: 404,
	codes.AlreadyExists: 409, codes.ResourceExhausted: 429, codes.Unavailable: 503,
}

func main() {
	server := pstest.NewServer()
	line, err := grpc.NewClient(server.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	publisher, subscriber := pubsubpb.NewPublisherClient(line), pubsubpb.NewSubscriberClient(line)
	http.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		if token := os.Getenv("TOKEN"); r.Header.Get("Authorization") != "Bearer "+token {
			fail(w, status.Error(codes.Unauthenticated, "no"))
			return
		}
		ctx, body := context.Background(), must(io.ReadAll(r.Body))
		name, verb, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1/"), ":")
		var answer proto.Message
		var err error
		switch {
		case verb == "publish" && r.Method == "POST":
			in := &pubsubpb.PublishRequest{}
			if err = protojson.Unmarshal(body, in); err != nil {
				err = status.Error(codes.InvalidArgument, "json")
				break
			}
			in.Topic = name
			answer, err = publisher.Publish(ctx, in)
		case verb == "pull" && r.Method == "POST":
			answer, err = subscriber.Pull(ctx, &pubsubpb.PullRequest{Subscription: name, MaxMessages: 1000, ReturnImmediately: true})
		case verb == "acknowledge" && r.Method == "POST":
			in := &pubsubpb.AcknowledgeRequest{}
			if err = protojson.Unmarshal(body, in); err == nil {
				in.Subscription = name
				answer, err = subscriber.Acknowledge(ctx, in)
			}
		case verb == "" && r.Method == "GET":
			answer, err = publisher.GetTopic(ctx, &pubsubpb.GetTopicRequest{Topic: name})
		case verb == "" && r.Method == "PUT" && strings.Contains(name, "/subscriptions/"):
			in := &pubsubpb.Subscription{}
			if err = protojson.Unmarshal(body, in); err == nil {
				in.Name = name
				answer, err = subscriber.CreateSubscription(ctx, in)
			}
		case verb == "" && r.Method == "PUT":
			answer, err = publisher.CreateTopic(ctx, &pubsubpb.Topic{Name: name})
		default:
			err = status.Error(codes.NotFound, "no such method")
		}
		if err != nil {
			fail(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json; charset=UTF-8")
		w.Write(must(protojson.Marshal(answer)))
	})
	panic(http.ListenAndServe(os.Args[1], nil))
}

func fail(w http.ResponseWriter, err error) {
	code, known := httpStatus[status.Code(err)]
	if !known {
		code = 500
	}
	http.Error(w, `{"error": {"code": `+http.StatusText(code)+`}}`, code)
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
