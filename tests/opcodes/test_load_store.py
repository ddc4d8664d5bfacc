"""Locals, names, globals, and moves on the stack."""

# The programs do on purpose what a linter warns of.
# ruff: noqa

from __future__ import annotations

import pytest

from opcodes.harness import Program, check, programs

counter = 0


def program_locals():
    a, b, c = 1, "two", [3]
    a, b = b, a
    d = e = c
    del c
    return a, b, d is e


def program_unbound_local():
    if counter > 10:
        value = 1
    return value


def program_deleted_local():
    value = 1
    del value
    try:
        del value
    except UnboundLocalError as error:
        return str(error)


def program_globals():
    global counter
    counter = 5
    counter += 1
    seen = counter
    counter = 0
    return seen, len("abc"), __name__


def program_global_created_and_deleted():
    global fresh
    fresh = 1
    seen = fresh
    del fresh
    try:
        return fresh
    except NameError as error:
        return seen, str(error), error.name


def program_delete_missing_global():
    global nowhere
    del nowhere


def program_name_error():
    return undefined_name  # noqa: F821


def program_exec_names():
    space = {"x": 1}
    exec("y = x + 1; del x; z = [y, len('ab')]; global g; g = 3", space)
    del space["__builtins__"]
    return space


def program_exec_missing_name():
    try:
        exec("del missing", {})
    except NameError as error:
        return str(error), error.name


class Space(dict):
    def __getitem__(self, key):
        if key == "answer":
            return 42
        return super().__getitem__(key)


def program_mapping_as_namespace():
    space = Space()
    exec("x = answer; y = len([x])", {"__builtins__": __builtins__}, space)
    return sorted(space.items())


def program_builtins_that_are_not_a_dict():
    return eval("len([1]) + answer", {"__builtins__": Space(len=len)})


class Shout:
    def __init__(self, log):
        self.log = log

    def __del__(self):
        self.log.append("gone")


def program_finalizers_run_at_the_same_time():
    log = []
    shout = Shout(log)
    log.append("stored")
    shout = 1
    log.append("replaced")
    Shout(log)
    log.append("dropped")
    del shout
    return log


def program_many_constants():
    values = [
        1000,
        1001,
        1002,
        1003,
        1004,
        1005,
        1006,
        1007,
        1008,
        1009,
        1010,
        1011,
        1012,
        1013,
        1014,
        1015,
        1016,
        1017,
        1018,
        1019,
        1020,
        1021,
        1022,
        1023,
        1024,
        1025,
        1026,
        1027,
        1028,
        1029,
        1030,
        1031,
        1032,
        1033,
        1034,
        1035,
        1036,
        1037,
        1038,
        1039,
        1040,
        1041,
        1042,
        1043,
        1044,
        1045,
        1046,
        1047,
        1048,
        1049,
        1050,
        1051,
        1052,
        1053,
        1054,
        1055,
        1056,
        1057,
        1058,
        1059,
        1060,
        1061,
        1062,
        1063,
        1064,
        1065,
        1066,
        1067,
        1068,
        1069,
        1070,
        1071,
        1072,
        1073,
        1074,
        1075,
        1076,
        1077,
        1078,
        1079,
        1080,
        1081,
        1082,
        1083,
        1084,
        1085,
        1086,
        1087,
        1088,
        1089,
        1090,
        1091,
        1092,
        1093,
        1094,
        1095,
        1096,
        1097,
        1098,
        1099,
        1100,
        1101,
        1102,
        1103,
        1104,
        1105,
        1106,
        1107,
        1108,
        1109,
        1110,
        1111,
        1112,
        1113,
        1114,
        1115,
        1116,
        1117,
        1118,
        1119,
        1120,
        1121,
        1122,
        1123,
        1124,
        1125,
        1126,
        1127,
        1128,
        1129,
        1130,
        1131,
        1132,
        1133,
        1134,
        1135,
        1136,
        1137,
        1138,
        1139,
        1140,
        1141,
        1142,
        1143,
        1144,
        1145,
        1146,
        1147,
        1148,
        1149,
        1150,
        1151,
        1152,
        1153,
        1154,
        1155,
        1156,
        1157,
        1158,
        1159,
        1160,
        1161,
        1162,
        1163,
        1164,
        1165,
        1166,
        1167,
        1168,
        1169,
        1170,
        1171,
        1172,
        1173,
        1174,
        1175,
        1176,
        1177,
        1178,
        1179,
        1180,
        1181,
        1182,
        1183,
        1184,
        1185,
        1186,
        1187,
        1188,
        1189,
        1190,
        1191,
        1192,
        1193,
        1194,
        1195,
        1196,
        1197,
        1198,
        1199,
        1200,
        1201,
        1202,
        1203,
        1204,
        1205,
        1206,
        1207,
        1208,
        1209,
        1210,
        1211,
        1212,
        1213,
        1214,
        1215,
        1216,
        1217,
        1218,
        1219,
        1220,
        1221,
        1222,
        1223,
        1224,
        1225,
        1226,
        1227,
        1228,
        1229,
        1230,
        1231,
        1232,
        1233,
        1234,
        1235,
        1236,
        1237,
        1238,
        1239,
        1240,
        1241,
        1242,
        1243,
        1244,
        1245,
        1246,
        1247,
        1248,
        1249,
        1250,
        1251,
        1252,
        1253,
        1254,
        1255,
        1256,
        1257,
        1258,
        1259,
        1260,
        1261,
        1262,
        1263,
        1264,
        1265,
        1266,
        1267,
        1268,
        1269,
        1270,
        1271,
        1272,
        1273,
        1274,
        1275,
        1276,
        1277,
        1278,
        1279,
        1280,
        1281,
        1282,
        1283,
        1284,
        1285,
        1286,
        1287,
        1288,
        1289,
        1290,
        1291,
        1292,
        1293,
        1294,
        1295,
        1296,
        1297,
        1298,
        1299,
    ]
    return sum(values)


def program_annotations():
    space = {}
    exec("a: int = 1\nb: str", space)
    return space["__annotations__"]


@pytest.mark.parametrize("program", programs(__name__))
def test_program(program: Program) -> None:
    check(program)
