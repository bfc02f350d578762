"""Counters of a few lines in languages that are seldom seen here."""

import subprocess

from kinds import Server


class Erlang(Server):
    command = "erl"
    SOURCE = """-module(counter).
-export([start/1]).
start([Port]) ->
    {ok, Listener} = gen_tcp:listen(list_to_integer(Port), [binary, {packet, line}, {active, false}, {ip, {127, 0, 0, 1}}]),
    Counter = spawn(fun() -> count(0) end), accept(Listener, Counter).
count(N) -> receive {From, next} -> From ! {number, N + 1}, count(N + 1) end.
accept(Listener, Counter) ->
    {ok, Socket} = gen_tcp:accept(Listener), Own = spawn(fun() -> receive go -> answer(Socket, Counter) end end),
    gen_tcp:controlling_process(Socket, Own), Own ! go, accept(Listener, Counter).
answer(Socket, Counter) ->
    case gen_tcp:recv(Socket, 0) of
        {ok, _} -> Counter ! {self(), next}, receive {number, N} -> gen_tcp:send(Socket, [$:, integer_to_list(N), 13, 10]) end, answer(Socket, Counter);
        _ -> ok
    end.
"""

    def words(self):
        (self.place / "counter.erl").write_text(self.SOURCE)
        subprocess.run(["erlc", "-o", self.place, self.place / "counter.erl"], check=True)
        return [self.program(), "-noinput", "-pa", self.place, "-run", "counter", "start", self.port]


class Ruby(Server):
    command = "ruby"
    SOURCE = """require 'socket'
server = TCPServer.new('127.0.0.1', ARGV[0].to_i); n = 0; lock = Mutex.new
loop { one = server.accept; Thread.new { while one.gets; one.write(":#{lock.synchronize { n += 1 }}\\r\\n"); end } }
"""

    def words(self):
        (self.place / "counter.rb").write_text(self.SOURCE)
        return [self.program(), self.place / "counter.rb", self.port]


class Perl(Server):
    command = "perl"
    SOURCE = r"""use IO::Socket::INET; use IO::Select;
my $server = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $ARGV[0], Listen => 9);
my ($n, $all) = (0, IO::Select->new($server));
while (1) {
    for my $one ($all->can_read(0.05)) {
        if ($one == $server) { $all->add($server->accept); next; }
        if (defined(my $line = <$one>)) { $n++; print $one ":$n\r\n"; $one->flush; } else { $all->remove($one); close $one; }
    }
}
"""

    def words(self):
        (self.place / "counter.pl").write_text(self.SOURCE)
        return [self.program(), self.place / "counter.pl", self.port]


class R(Server):
    """It talks to one client at a time."""

    command = "R"
    clients = 1
    SOURCE = """server <- serverSocket(PORT)
n <- 0
repeat {
    one <- socketAccept(server, blocking = TRUE, open = "a+")
    while (length(readLines(one, 1))) { n <- n + 1; writeLines(paste0(":", n), one, sep = "\\r\\n") }
    close(one)
}
"""

    def words(self):
        (self.place / "counter.R").write_text(self.SOURCE.replace("PORT", str(self.port)))
        return [self.program(), "--no-save", "--no-restore", "-q", "-f", self.place / "counter.R"]
