/* An engine that costs nearly nothing: what a proxy adds is then nearly all that is measured.
 *
 * HTTP/1.1 with keep-alive, one thread, one epoll loop. Usage: stub PORT
 *   GET  /health /v1/models /version /metrics    as a bare vLLM offers them (model "tiny")
 *   POST anything                                a small chat completion; what a body has beyond the buffer's size is
 *                                                read and thrown away
 *   POST with "stream":true                      a stream in vLLM's framing: the role, max_tokens tokens (the last with
 *                                                its finish_reason), usage if the body asks for it, [DONE]; each event
 *                                                is a chunk and a send() of its own. "top_k":MS spaces the tokens.
 * Everything else is answered with 404, so that a prober learns that this is no sidecar.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 4096, BUFFER_BYTES = 65536 };

typedef struct {
  char *in;        /* received and not yet answered; NULL: no connection */
  int in_bytes;
  long skip;       /* bytes of a large body that are still to come and to be thrown away */
  char *out;       /* answered and not yet taken by the socket */
  int out_bytes;
  int streaming, tokens_left, wants_usage;
  double due, gap; /* seconds: when the next token goes, and how far tokens are apart */
} connection;

static connection connections[MAX_CONNECTIONS]; /* by file descriptor */
static int streams[MAX_CONNECTIONS], stream_count, poller;

static char answer[1024], models[1024], page[2048], health[128], version[256], missing[256];
static char stream_head[256], role_event[1024], token_event[1024], last_event[1024], usage_event[1024];
static const char *stream_end = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";

static double now_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

static void render(char *into, const char *status, const char *type, const char *body) {
  sprintf(into, "HTTP/1.1 %s\r\nserver: stub\r\ncontent-type: %s\r\ncontent-length: %zu\r\n\r\n%s", status, type,
          strlen(body), body);
}

static void render_event(char *into, const char *tail) {
  char event[1024];
  sprintf(event, "data: {\"id\":\"chatcmpl-a771c986aab74e8d\",\"object\":\"chat.completion.chunk\","
                 "\"created\":1795984016,\"model\":\"tiny\",%s}\n\n", tail);
  sprintf(into, "%zx\r\n%s\r\n", strlen(event), event);
}

static void render_all(void) {
  const char *json = "application/json";
  render(answer, "200 OK", json,
         "{\"id\":\"chatcmpl-a771c986aab74e8d\",\"object\":\"chat.completion\",\"created\":1795984016,"
         "\"model\":\"tiny\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\" Moon\"},"
         "\"logprobs\":null,\"finish_reason\":\"stop\"}],"
         "\"usage\":{\"prompt_tokens\":240,\"total_tokens\":241,\"completion_tokens\":1}}");
  render(models, "200 OK", json,
         "{\"object\":\"list\",\"data\":[{\"id\":\"tiny\",\"object\":\"model\",\"created\":1795984016,"
         "\"owned_by\":\"vllm\",\"root\":\"tiny\",\"parent\":null,\"max_model_len\":2048}]}");
  render(version, "200 OK", json, "{\"version\":\"0.32.0\"}");
  render(missing, "404 Not Found", json,
         "{\"error\":{\"message\":\"Not Found\",\"type\":\"Not Found\",\"param\":null,\"code\":404}}");
  render(health, "200 OK", "text/plain", "");
  render(page, "200 OK", "text/plain; version=0.0.4",
         "# TYPE vllm:num_requests_running gauge\n"
         "vllm:num_requests_running{engine=\"0\",model_name=\"tiny\"} 0.0\n"
         "# TYPE vllm:num_requests_waiting gauge\n"
         "vllm:num_requests_waiting{engine=\"0\",model_name=\"tiny\"} 0.0\n"
         "# TYPE vllm:kv_cache_usage_perc gauge\n"
         "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"tiny\"} 0.1\n"
         "# TYPE vllm:prompt_tokens_total counter\n"
         "vllm:prompt_tokens_total{engine=\"0\",model_name=\"tiny\"} 0.0\n"
         "# TYPE vllm:generation_tokens_total counter\n"
         "vllm:generation_tokens_total{engine=\"0\",model_name=\"tiny\"} 0.0\n"
         "# TYPE vllm:cache_config_info gauge\n"
         "vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"16777216\"} 1.0\n");
  strcpy(stream_head, "HTTP/1.1 200 OK\r\nserver: stub\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                      "transfer-encoding: chunked\r\n\r\n");
  render_event(role_event, "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                           "\"logprobs\":null,\"finish_reason\":null}]");
  render_event(token_event, "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" Moon\"},\"logprobs\":null,"
                            "\"finish_reason\":null,\"token_ids\":null}]");
  render_event(last_event, "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" Moon\"},\"logprobs\":null,"
                           "\"finish_reason\":\"length\",\"stop_reason\":null,\"token_ids\":null}]");
  render_event(usage_event, "\"choices\":[],\"usage\":{\"prompt_tokens\":240,\"total_tokens\":496,"
                            "\"completion_tokens\":256}");
}

static void leave(int fd) {
  close(fd);
  free(connections[fd].in);
  free(connections[fd].out);
  memset(&connections[fd], 0, sizeof(connection));
  for (int i = 0; i < stream_count; i++)
    if (streams[i] == fd) { streams[i] = streams[--stream_count]; break; }
}

/* -1: the connection is dead. */
static int put(int fd, const char *bytes) {
  connection *c = &connections[fd];
  int left = strlen(bytes);
  if (!c->out_bytes) {
    int sent = send(fd, bytes, left, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno != EAGAIN) return -1;
      sent = 0;
    }
    bytes += sent;
    left -= sent;
  }
  if (left) {
    c->out = realloc(c->out, c->out_bytes + left);
    memcpy(c->out + c->out_bytes, bytes, left);
    c->out_bytes += left;
  }
  return 0;
}

static int number_after(const char *body, const char *name, int otherwise) {
  const char *at = strstr(body, name);
  return at ? atoi(at + strlen(name)) : otherwise;
}

static int answer_post(int fd, const char *body) {
  connection *c = &connections[fd];
  const char *stream = strstr(body, "\"stream\":");
  if (!stream || (stream[9] != 't' && stream[10] != 't')) return put(fd, answer);
  c->tokens_left = number_after(body, "\"max_completion_tokens\":", number_after(body, "\"max_tokens\":", 16));
  c->wants_usage = strstr(body, "\"include_usage\":true") || strstr(body, "\"include_usage\": true");
  c->gap = number_after(body, "\"top_k\":", 0) / 1e3;
  c->due = now_seconds() + c->gap;
  c->streaming = 1;
  streams[stream_count++] = fd;
  return put(fd, stream_head) < 0 ? -1 : put(fd, role_event);
}

static int answer_get(int fd, const char *path) {
  static const struct { const char *path, *answer; } known[] = {
      {"/health ", health}, {"/v1/models ", models}, {"/version ", version}, {"/metrics ", page}};
  for (unsigned i = 0; i < sizeof known / sizeof *known; i++)
    if (!strncmp(path, known[i].path, strlen(known[i].path))) return put(fd, known[i].answer);
  return put(fd, missing);
}

/* Answers one whole request at the front of the buffer. 0: more bytes are needed, -1: close. */
static int serve(int fd) {
  connection *c = &connections[fd];
  if (c->in_bytes >= 4 && memcmp(c->in, "GET ", 4) && memcmp(c->in, "POST", 4)) return -1;
  char *end = memmem(c->in, c->in_bytes, "\r\n\r\n", 4);
  if (!end) return c->in_bytes >= BUFFER_BYTES - 1 ? -1 : 0;
  int head = end + 4 - c->in, length = 0;
  *end = 0;
  const char *field = strcasestr(c->in, "\r\ncontent-length:");
  if (field) length = atoi(field + 17);
  int chunked = strcasestr(c->in, "\r\ntransfer-encoding:") != NULL;
  *end = '\r';
  if (chunked) return -1;
  if (head + length > BUFFER_BYTES - 1) {
    c->skip = (long)head + length - c->in_bytes;
    c->in_bytes = 0;
    return 1;
  }
  if (c->in_bytes < head + length) return 0;
  char *body = c->in + head, after = body[length];
  body[length] = 0;
  int ok = c->in[0] == 'G' ? answer_get(fd, c->in + 4) : answer_post(fd, body);
  body[length] = after;
  c->in_bytes -= head + length;
  memmove(c->in, body + length, c->in_bytes);
  return ok < 0 ? -1 : 1;
}

static int serve_all(int fd) {
  connection *c = &connections[fd];
  while (c->in_bytes && !c->streaming && !c->skip) {
    int done = serve(fd);
    if (done < 0) return -1;
    if (!done) break;
  }
  return 0;
}

static void take(int listener) {
  int fd, on = 1;
  while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
    if (fd >= MAX_CONNECTIONS) { close(fd); continue; }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    connections[fd].in = malloc(BUFFER_BYTES);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.fd = fd};
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
  }
}

/* Throws away what belongs to a large body, and answers it when it is whole. -1: the connection is dead. */
static int skip(int fd) {
  connection *c = &connections[fd];
  if (c->in_bytes < c->skip) {
    c->skip -= c->in_bytes;
    c->in_bytes = 0;
    return 0;
  }
  c->in_bytes -= c->skip;
  memmove(c->in, c->in + c->skip, c->in_bytes);
  c->skip = 0;
  return put(fd, answer);
}

static void turn(int fd) {
  connection *c = &connections[fd];
  if (!c->in) return;
  if (c->out_bytes) {
    int sent = send(fd, c->out, c->out_bytes, MSG_NOSIGNAL);
    if (sent > 0) memmove(c->out, c->out + sent, c->out_bytes -= sent);
  }
  for (;;) {
    int got = recv(fd, c->in + c->in_bytes, BUFFER_BYTES - 1 - c->in_bytes, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) { leave(fd); return; }
    c->in_bytes += got;
    if (c->skip && skip(fd) < 0) { leave(fd); return; }
    if (!c->skip && serve_all(fd) < 0) { leave(fd); return; }
  }
}

/* The next event of a stream; -1: the connection is dead, 1: the stream is over. */
static int advance(int fd) {
  connection *c = &connections[fd];
  c->due += c->gap;
  if (c->tokens_left > 0) return put(fd, --c->tokens_left ? token_event : last_event);
  if (c->wants_usage && put(fd, usage_event) < 0) return -1;
  if (put(fd, stream_end) < 0) return -1;
  c->streaming = 0;
  return 1;
}

static void advance_all(void) {
  double now = now_seconds();
  for (int i = 0; i < stream_count;) {
    int fd = streams[i];
    connection *c = &connections[fd];
    if (c->out_bytes || (c->gap > 0 && now < c->due)) { i++; continue; }
    int done = advance(fd);
    if (done < 0) { leave(fd); continue; }
    if (!done) { i++; continue; }
    streams[i] = streams[--stream_count];
    if (serve_all(fd) < 0) leave(fd);
  }
}

static int listen_on(int port) {
  int on = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listener, (void *)&address, sizeof address) || listen(listener, 1024)) {
    perror("stub: cannot listen");
    exit(1);
  }
  return listener;
}

static int wait_milliseconds(void) {
  if (!stream_count) return -1;
  for (int i = 0; i < stream_count; i++)
    if (connections[streams[i]].gap == 0) return 0;
  return 1;
}

int main(int count, char **arguments) {
  if (count != 2) {
    fprintf(stderr, "usage: stub PORT\n");
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  render_all();
  int listener = listen_on(atoi(arguments[1]));
  struct epoll_event listening = {.events = EPOLLIN, .data.fd = listener}, events[256];
  poller = epoll_create1(0);
  epoll_ctl(poller, EPOLL_CTL_ADD, listener, &listening);
  for (;;) {
    int ready = epoll_wait(poller, events, 256, wait_milliseconds());
    for (int i = 0; i < ready; i++)
      events[i].data.fd == listener ? take(listener) : turn(events[i].data.fd);
    if (stream_count) advance_all();
  }
}
